"""Cumulative sum of each row: y_ij = sum_{k <= j} x_ik.

cumsum(x) -> y

    x  [rows, cols]  float16 | bfloat16 | float32 | float64
    y  [rows, cols]  dtype of x; float16 and bfloat16 are summed in float32
"""
