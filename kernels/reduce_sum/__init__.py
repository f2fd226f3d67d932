"""Sum of a matrix, or of each of its rows or columns.

reduce_sum(x, *, dim) -> y

    x    [rows, cols]  float16 | bfloat16 | float32 | float64
    dim  1: y [rows], one number for each row; 0: y [cols], one for each column; "all": one number
    y                  dtype of x; float16 and bfloat16 are added in float32
"""
