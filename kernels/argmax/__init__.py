"""Place of the maximum of a matrix, or of each of its rows or columns; the first place if there are several.

argmax(x, *, dim) -> y

    x    [rows, cols]  float16 | bfloat16 | float32 | float64
    dim  1: y [rows], one number for each row; 0: y [cols], one for each column; "all": one number
    y                  int64; for dim="all" row * cols + col. The first NaN if there is one
"""
