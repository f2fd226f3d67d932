"""Each rank sends its tensor to the next rank, around a ring.

send_recv(x) -> y

    x  any shape, contiguous  the same shape and dtype on all ranks
    y  that shape             that dtype: x of the previous rank; of the last rank, on rank 0

Every rank of torch.distributed's default group calls it.
"""
