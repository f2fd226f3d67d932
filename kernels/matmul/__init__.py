"""Matrix product: y_ij = sum_k a_ik b_kj.

matmul(a, b) -> y

    a  [m, k]  float16 | bfloat16 | float32 | float64
    b  [k, n]  dtype of a
    y  [m, n]  dtype of a; float16 and bfloat16 are summed in float32
"""
