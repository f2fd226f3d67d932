"""A linear layer of which each rank has some columns of the input and the same rows of the weight (row-parallel).

matmul_all_reduce(a, b) -> y

    a    [m, k / ranks]  float16 | bfloat16 | float32 | float64; the columns of this rank
    b    [k / ranks, n]  dtype of a; the rows of this rank
    y    [m, n]          the sum over ranks of a @ b, the same on each; dtype of a

Ranks are those of the default process group of torch.distributed.
"""
