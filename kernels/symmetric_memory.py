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

ALIGNED = 16  # bytes
ONE_SHOT_BYTES = 2**18  # up to here each rank reads all of the others' tensors; beyond, its part, and then the sums
TYPES = (torch.float32, torch.bfloat16)


@cache
def _buffer(numel: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Any]:
    from torch.distributed import _symmetric_memory as symmetric

    buffer = symmetric.empty(numel, dtype=dtype, device=device)
    return buffer, symmetric.rendezvous(buffer, dist.group.WORLD)


def shared(numel: int, like: Tensor) -> tuple[Tensor, Any]:
    """Return a flat buffer of ``numel`` numbers that all ranks can read, and its handle; the same at each call.

    It is a little longer, so that every rank adds whole units of ``ALIGNED`` bytes. All ranks call this with the same
    size, and with the dtype and the device of ``like``. The first call allocates, and must not be captured.

    Raises:
        Unsupported: ``like`` is not on a GPU, or the GPUs cannot read each other's memory.

    """
    require_cuda(like, "symmetric memory")
    try:
        unit = ALIGNED // like.element_size() * dist.get_world_size()
        return _buffer(-(-numel // unit) * unit, like.dtype, like.device)
    except RuntimeError as error:
        raise Unsupported(f"symmetric memory: {str(error).splitlines()[0]}") from error


def shared_copy(x: Tensor) -> tuple[Tensor, Any]:
    """Copy ``x`` into a buffer of ``shared``. Return it, flat and as long as ``x``, and its handle."""
    buffer, handle = shared(x.numel(), x)
    buffer = buffer[: x.numel()]
    handle.barrier()  # no rank reads what the previous call has left there
    buffer.copy_(x.view(-1))
    handle.barrier()
    return buffer, handle


def summed(numel: int, like: Tensor) -> Tensor:
    """Return the sum over ranks of the buffers of ``shared(numel, like)``, flat. They may be overwritten.

    Raises:
        Unsupported: the dtype is neither float32 nor bfloat16.

    """
    if like.dtype not in TYPES:
        raise Unsupported(f"torch's symmetric memory adds float32 and bfloat16, not {like.dtype}")
    buffer, _ = shared(numel, like)
    group = dist.group.WORLD.group_name
    total: Tensor
    if buffer.nbytes <= ONE_SHOT_BYTES:
        total = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group)
    else:
        total = torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group).clone()
    return total[:numel]


def peer(handle: Any, rank: int, like: Tensor) -> Tensor:
    """Return the buffer of ``rank`` as a tensor of this GPU, flat."""
    buffer: Tensor = handle.get_buffer(rank, (like.numel(),), like.dtype)
    return buffer
