"""Views of a matrix that a kernel must take as it takes their copies."""

LAYOUTS = {
    "unaligned": lambda x: x[:, 1:],
    "every other row": lambda x: x[::2],
    "every other col": lambda x: x[:, ::2],
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand(4, -1),
}
