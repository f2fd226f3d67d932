"""Passing on by reading the memory of the previous rank: torch's symmetric memory."""

from __future__ import annotations

from torch import Tensor

from ..symmetric_memory import peer, shared_copy


def send_recv(x: Tensor) -> Tensor:
    """Pass on, as in ``kernels.send_recv``. Raises Unsupported if ``x`` is not on a GPU."""
    buffer, handle = shared_copy(x)
    return peer(handle, (handle.rank - 1) % handle.world_size, buffer).clone().view(x.shape)
