"""All-to-all by reading the other GPUs' memory: torch's symmetric memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..symmetric_memory import peer, shared_copy


def all_to_all(x: Tensor) -> Tensor:
    """Exchange parts, as in ``kernels.all_to_all``. Raises Unsupported if ``x`` is not on a GPU."""
    buffer, handle = shared_copy(x)
    count = handle.world_size
    return torch.cat([peer(handle, rank, buffer).chunk(count)[handle.rank] for rank in range(count)]).view(x.shape)
