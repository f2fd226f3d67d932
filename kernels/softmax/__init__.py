"""Softmax over the last dimension: y_j = exp(x_j - m) / sum_k exp(x_k - m), with m the largest x of the row.

softmax(x) -> y

    x  [..., cols]  float16 | bfloat16 | float32 | float64
    y  shape of x   dtype of x; float16 and bfloat16 are computed in float32

A row is NaN throughout if all its elements are -inf, or if it contains +inf or NaN.

Implementations that autograd can differentiate have a backward as well (``workload.pass=bwd``).
"""
