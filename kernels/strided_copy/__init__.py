"""Every ``stride``-th number of a vector, copied into a contiguous one.

strided_copy(x, *, stride) -> y

    x       [elements stride]  any dtype
    stride  at least 1
    y       [elements]         dtype of x, contiguous; it shares no memory with x
"""
