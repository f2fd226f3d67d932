"""Matrix product: y_ij = sum_k a_ik b_kj.

matmul(a, b, *, scale_a=None, scale_b=None) -> y

    a        [m, k]  float16 | bfloat16 | float32 | float64 | float8_e4m3fn
    b        [k, n]  dtype of a; in float8 best the transpose of an [n, k], since tensor cores read rows along k
    scale_a  []      float32, for float8 only: the factors are scale_a * a and scale_b * b; None is 1
    scale_b  []
    y        [m, n]  dtype of a; bfloat16 for float8. Types narrower than float32 are summed in float32. On a Hopper
                     GPU, float8 is summed in the accumulators of the tensor cores, which keep fewer bits
"""
