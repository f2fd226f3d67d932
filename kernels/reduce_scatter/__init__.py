"""Sum of the tensors of all ranks, of which each rank gets a part.

reduce_scatter(x) -> y

    x  [n m, ...], contiguous  the same shape and dtype on all n ranks
    y  [m, ...]                that dtype: part r of the sum on rank r; sums are rounded in any order

Every rank of torch.distributed's default group calls it.
"""
