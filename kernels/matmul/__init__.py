"""Matrix product: y_ij = sum_k a_ik b_kj.

matmul(a, b, *, scale_a=None, scale_b=None) -> y

    a        [m, k]  float16 | bfloat16 | float32 | float64 | float8_e4m3fn
    b        [k, n]  dtype of a; in float8 best stored along k, as the transpose of an [n, k]: tensor cores read it so
    scale_a  []      float32, of float8 alone: a stands for scale_a * a, and b likewise; None is 1
    scale_b  []
    y        [m, n]  dtype of a; bfloat16 of float8. Types narrower than float32 are summed in float32, float8 on a
                     Hopper GPU in the accumulators of its tensor cores, which keep fewer bits of it
"""
