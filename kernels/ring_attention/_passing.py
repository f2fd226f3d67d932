"""Pass tensors around the ring of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.distributed as dist
from torch import Tensor

from ..ring import start_passing, wait_for


def passed_around(tensors: Sequence[Tensor], *, overlap: bool) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Yield each rank of the ring, this one first and then backwards, with its ``tensors``.

    With ``overlap`` the next ones travel while the caller works; without, they travel when the caller is done. Every
    rank passes on all of them, also those that it does not need.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensors = [x.contiguous() for x in tensors]
    for step in range(ranks):
        source = (rank - step) % ranks
        if step + 1 == ranks:
            yield source, tensors
            return
        if not overlap:
            yield source, tensors
        arriving, works = start_passing(tensors)
        if overlap:
            yield source, tensors
        wait_for(works)
        tensors = arriving
