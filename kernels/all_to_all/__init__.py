"""A part of each rank's tensor for every rank.

all_to_all(x) -> y

    x  [n m, ...], contiguous  the same shape and dtype on all n ranks
    y  [n m, ...]              on rank r: part r of x of rank 0, then part r of x of rank 1, ...

Every rank of torch.distributed's default group calls it.
"""
