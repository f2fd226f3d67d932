"""Broadcast of torch.distributed: NCCL on GPUs, gloo on a CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(x: Tensor) -> Tensor:
    """Broadcast, as in ``kernels.broadcast``."""
    y = torch.empty_like(x) if dist.get_rank() else x
    dist.broadcast(y, 0)
    return y
