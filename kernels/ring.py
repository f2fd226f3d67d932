"""Sending and receiving between the ranks of torch.distributed, of which collectives by hand are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def exchange(send: Tensor, to: int, receive: Tensor, source: int) -> None:
    """Send ``send`` to rank ``to`` and fill ``receive`` from rank ``source``, at once. Both are contiguous."""
    if to == source == dist.get_rank():
        receive.copy_(send)
        return
    wait_for(_start([send], to, [receive], source))


def pass_on(send: Tensor, receive: Tensor) -> None:
    """Send ``send`` to the next rank and fill ``receive`` from the previous one, around the ring."""
    rank, count = dist.get_rank(), dist.get_world_size()
    exchange(send, (rank + 1) % count, receive, (rank - 1) % count)


def start_passing(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[dist.Work]]:
    """Start to send contiguous ``tensors`` to the next of several ranks, and to receive those of the previous one.

    Return the tensors that are filled, and what ``wait_for`` waits for.
    """
    rank, count = dist.get_rank(), dist.get_world_size()
    arriving = [torch.empty_like(x) for x in tensors]
    return arriving, _start(tensors, (rank + 1) % count, arriving, (rank - 1) % count)


def wait_for(works: Sequence[dist.Work]) -> None:
    """Let the current stream of a GPU, or the caller on a CPU, wait for ``works``."""
    for work in works:
        work.wait()


def _start(send: Sequence[Tensor], to: int, receive: Sequence[Tensor], source: int) -> list[dist.Work]:
    sends = [dist.P2POp(dist.isend, x, to) for x in send]
    works: list[dist.Work] = dist.batch_isend_irecv([*sends, *(dist.P2POp(dist.irecv, x, source) for x in receive)])
    return works
