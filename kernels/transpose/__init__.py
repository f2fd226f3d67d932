"""Transpose of a matrix: y_ij = x_ji, as a copy with contiguous rows.

transpose(x) -> y

    x  [rows, cols]  any dtype
    y  [cols, rows]  dtype of x, contiguous; it shares no memory with x
"""
