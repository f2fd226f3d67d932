"""Sum over ranks of torch.distributed: NCCL on GPUs, gloo on a CPU."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def all_reduce(x: Tensor) -> Tensor:
    """Add in place, as in ``kernels.all_reduce``."""
    dist.all_reduce(x)
    return x
