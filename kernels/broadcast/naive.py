"""Broadcast around a ring: each rank receives the whole tensor, and then sends it to the next."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(x: Tensor) -> Tensor:
    """Broadcast, as in ``kernels.broadcast``."""
    rank, y = dist.get_rank(), x
    if rank > 0:
        y = torch.empty_like(x)
        dist.recv(y, rank - 1)
    if rank + 1 < dist.get_world_size():
        dist.send(y, rank + 1)
    return y
