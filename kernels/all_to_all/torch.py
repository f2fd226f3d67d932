"""All-to-all of torch.distributed: NCCL on GPUs, gloo on a CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def all_to_all(x: Tensor) -> Tensor:
    """Exchange parts, as in ``kernels.all_to_all``."""
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    return y
