"""Pairwise Euclidean distances: y_ij = (sum_k (a_ik - b_jk)^2)^(1/2).

cdist(a, b, *, p) -> y

    a  [n, d]  float16 | bfloat16 | float32 | float64
    b  [m, d]  dtype of a
    y  [n, m]  dtype of a; float16 and bfloat16 are computed in float32
    p  2, the only norm
"""
