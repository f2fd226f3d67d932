"""Sum and scatter around a ring: in each of n - 1 steps, a rank adds its own numbers to a sum and passes it on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..ring import pass_on


def reduce_scatter(x: Tensor) -> Tensor:
    """Add and scatter, as in ``kernels.reduce_scatter``."""
    rank, count = dist.get_rank(), dist.get_world_size()
    parts = x.chunk(count)
    y = parts[rank - 1] if count > 1 else x.clone()
    for step in range(count - 1):
        received = torch.empty_like(y)
        pass_on(y, received)
        y = received.add_(parts[(rank - step - 2) % count])
    return y
