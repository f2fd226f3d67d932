"""Broadcast by reading the memory of rank 0: torch's symmetric memory."""

from __future__ import annotations

from torch import Tensor

from ..symmetric_memory import peer, shared_copy


def broadcast(x: Tensor) -> Tensor:
    """Broadcast, as in ``kernels.broadcast``. Raises Unsupported if ``x`` is not on a GPU."""
    buffer, handle = shared_copy(x)
    return peer(handle, 0, buffer).clone().view(x.shape)
