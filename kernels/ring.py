"""Sending and receiving between the ranks of torch.distributed, of which collectives by hand are made."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def exchange(send: Tensor, to: int, receive: Tensor, source: int) -> None:
    """Send ``send`` to rank ``to`` and fill ``receive`` from rank ``source``, at once. Both are contiguous."""
    if to == source == dist.get_rank():
        receive.copy_(send)
        return
    both = [dist.P2POp(dist.isend, send, to), dist.P2POp(dist.irecv, receive, source)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def pass_on(send: Tensor, receive: Tensor) -> None:
    """Send ``send`` to the next rank and fill ``receive`` from the previous one, around the ring."""
    rank, count = dist.get_rank(), dist.get_world_size()
    exchange(send, (rank + 1) % count, receive, (rank - 1) % count)
