"""Histogram: the number of elements in each of ``bins`` bins of equal width over [0, 1].

histogram(x, *, bins) -> y

    x     [elements]  float32
    bins  a whole number, at least 1
    y     [bins]      int64; element k counts k / bins <= x < (k + 1) / bins

The last bin includes 1. Elements below 0, above 1, and NaN are in no bin. The bin of x is the whole part of the float32
product x * bins, so rounding decides at an edge.
"""
