"""All-to-all in n - 1 steps: in step k, a rank sends to the k-th next rank and receives from the k-th previous."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..ring import exchange


def all_to_all(x: Tensor) -> Tensor:
    """Exchange parts, as in ``kernels.all_to_all``."""
    rank, count = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    given, got = x.chunk(count), y.chunk(count)
    got[rank].copy_(given[rank])
    for step in range(1, count):
        to, source = (rank + step) % count, (rank - step) % count
        exchange(given[to], to, got[source], source)
    return y
