"""Linear layer with an int8 weight: y = x w^T, with w_jk = weight_jk scale_jg and g = k // group.

linear_int8(x, weight, scale, *, group) -> y

    x       [m, k]       float16 | bfloat16 | float32
    weight  [n, k]       int8
    scale   [n, groups]  dtype of x
    group                neighbours in a row of the weight that share a scale, the last group may be shorter; 0: one
                         scale for the whole row
    y       [m, n]       dtype of x; sums are float32

An implementation with an argument ``dense`` also gets the product of weight and scale in the dtype of x, [n, k].
"""
