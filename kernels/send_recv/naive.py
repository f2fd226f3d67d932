"""Sending before or after receiving: every second rank receives first, since a rank cannot do both at once."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def send_recv(x: Tensor) -> Tensor:
    """Pass on, as in ``kernels.send_recv``."""
    rank, count = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    if count == 1:
        return y.copy_(x)
    if rank % 2 == 0:
        dist.send(x, (rank + 1) % count)
    dist.recv(y, (rank - 1) % count)
    if rank % 2:
        dist.send(x, (rank + 1) % count)
    return y
