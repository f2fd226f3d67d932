"""Gather of torch.distributed: NCCL on GPUs, gloo on a CPU."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def all_gather(x: Tensor) -> Tensor:
    """Gather, as in ``kernels.all_gather``."""
    y = x.new_empty((dist.get_world_size() * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(y, x)
    return y
