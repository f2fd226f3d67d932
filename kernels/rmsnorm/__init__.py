"""RMSNorm of each row: y = x / (mean x^2 + eps)^(1/2) * w, without a mean and without a bias (arXiv:1910.07467).

rmsnorm(x, w, *, eps) -> y

    x    [..., cols]  float16 | bfloat16 | float32 | float64
    w    [cols]       weight, of the dtype of x
    eps               is added to the mean of the squares
    y    shape of x   dtype of x; float16 and bfloat16 are computed in float32

Autograd can differentiate the implementations with respect to x and w (``workload.pass=bwd``, ``fwd_bwd``).
"""
