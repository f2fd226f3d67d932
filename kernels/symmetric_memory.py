"""Buffers that the GPUs of all ranks read and write directly over NVLink, by torch's symmetric memory.

The fast reductions of a switch (``multimem``) are not used: they need multicast, which a machine may have turned off.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .unsupported import Unsupported, require_cuda


@cache
def _buffer(numel: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Any]:
    from torch.distributed import _symmetric_memory as symmetric

    buffer = symmetric.empty(numel, dtype=dtype, device=device)
    return buffer, symmetric.rendezvous(buffer, dist.group.WORLD)


def shared_copy(x: Tensor) -> tuple[Tensor, Any]:
    """Copy ``x`` into a buffer that all ranks can read. Return the buffer, flat, and its handle.

    All ranks call this with tensors of the same size and dtype. The first call allocates, and must not be captured.

    Raises:
        Unsupported: ``x`` is not on a GPU, or the GPUs cannot read each other's memory.

    """
    require_cuda(x, "symmetric memory")
    try:
        buffer, handle = _buffer(x.numel(), x.dtype, x.device)
    except RuntimeError as error:
        raise Unsupported(f"symmetric memory: {str(error).splitlines()[0]}") from error
    handle.barrier()  # no rank reads what the previous call has left there
    buffer.copy_(x.view(-1))
    handle.barrier()
    return buffer, handle


def peer(handle: Any, rank: int, like: Tensor) -> Tensor:
    """Return the buffer of ``rank`` as a tensor of this GPU, flat."""
    buffer: Tensor = handle.get_buffer(rank, (like.numel(),), like.dtype)
    return buffer
