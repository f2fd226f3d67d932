"""The tensors of all ranks, one after the other, on every rank.

all_gather(x) -> y

    x  [m, ...], contiguous   the same shape and dtype on all n ranks
    y  [n m, ...]             that dtype: x of rank 0, then x of rank 1, ...

Every rank of torch.distributed's default group calls it.
"""
