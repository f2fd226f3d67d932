"""What a call gives, for those who look at it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from models.workload import Call


def tensors(result: object) -> list[Tensor]:
    """The tensors in ``result``, without the graph that autograd made of them."""
    return [item.detach() for item in result if isinstance(item, Tensor)] if isinstance(result, tuple | list) else []


def spoil(call: Call) -> None:
    """Make one call, and write over what it gives: of a call that merely keeps its results the next ones are wrong."""
    call.restore()
    inputs = {tensor.untyped_storage().data_ptr() for tensor in call.inputs}
    for output in tensors(call.run()):
        if output.is_floating_point() and output.untyped_storage().data_ptr() not in inputs:
            with contextlib.suppress(RuntimeError):  # expanded, or made in inference mode: torch writes to neither
                output.fill_(math.nan)


@dataclass(frozen=True)
class Place:
    """Where a tensor lies that a CUDA graph writes: it may be looked at after each replay, and holds no memory."""

    data_ptr: int
    size_bytes: int  # of its storage
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        """The place of ``tensor``."""
        storage = tensor.untyped_storage()
        return cls(
            storage.data_ptr(),
            storage.nbytes(),
            int(tensor.storage_offset()),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
        )

    def tensor(self) -> Tensor:
        """What is there now. As torch's own CUDA graph trees do it."""
        storage = torch._C._construct_storage_from_data_pointer(self.data_ptr, self.device, self.size_bytes)
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)
