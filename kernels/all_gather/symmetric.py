"""Gather by reading the other GPUs' memory: torch's symmetric memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..symmetric_memory import peer, shared_copy


def all_gather(x: Tensor) -> Tensor:
    """Gather, as in ``kernels.all_gather``. Raises Unsupported if ``x`` is not on a GPU."""
    buffer, handle = shared_copy(x)
    y = torch.cat([peer(handle, rank, buffer) for rank in range(handle.world_size)])
    return y.view(-1, *x.shape[1:])
