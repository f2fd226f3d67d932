"""LayerNorm of each row: y = (x - mean) / (variance + eps)^(1/2) * w + b, by the mean and the variance of the row.

layernorm(x, w, b, *, eps) -> y

    x    [..., cols]  float16 | bfloat16 | float32 | float64
    w    [cols]       weight, of the dtype of x
    b    [cols]       bias, of the dtype of x
    eps               is added to the variance, of which a constant row has none
    y    shape of x   dtype of x; float16 and bfloat16 are computed in float32

Autograd can differentiate the implementations with respect to x, w and b (``workload.pass=bwd``, ``fwd_bwd``).
"""
