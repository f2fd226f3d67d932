"""The nearest of some centres to each point: y_i is the index of the least |a_i - b_j|, the first one of several.

nearest(a, b) -> y

    a  [n, d]  float16 | bfloat16 | float32: points
    b  [m, d]  dtype of a: centres, at least one
    y  [n]     int64: a row of b. A NaN is nearer than any number, as in torch.argmin

Squares of differences below 1e-38 may count as 0. Of an infinite point, whose differences may be NaN, any row is right.
"""
