"""What a tensor memory descriptor can read, and copies of what it cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from ..tensor_cores import TensorDescriptor

HAVE_DESCRIPTORS = TensorDescriptor is not None
ALIGNED = 16  # bytes, of the base and of every stride but the last of what a descriptor describes


class _Described(TensorDescriptor or object):  # type: ignore[misc]
    """One that is known to be right: looking again takes 1 us of the host, of the 10 or so that a launch has."""

    def __post_init__(self) -> None:
        """What TensorDescriptor would look at ``strides_of`` has looked at."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor [rows, k], or its transpose, in the order in which a descriptor can read it."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    along_k: bool  # the rows of what is described run along k

    def tiles(self, block_rows: int, block_k: int) -> TensorDescriptor:
        """A descriptor that loads so many rows by so many of k. It holds an address, so it is made at each call."""
        block = [block_rows, block_k] if self.along_k else [block_k, block_rows]
        return _Described(self.base, self.shape, self.strides, block)


def described(y: Tensor, block: list[int]) -> TensorDescriptor | None:
    """``y`` as a descriptor that stores tiles of ``block``; None if its rows are not aligned."""
    strides = strides_of(y)
    return _Described(y, list(y.shape), strides, block) if strides else None


def in_place(x: Tensor, along_k: bool) -> Operand | None:
    """``x`` [rows, k] as a descriptor can read it where it lies; None if it cannot."""
    if strides := strides_of(x):
        return Operand(x, list(x.shape), strides, along_k=True)
    if not along_k and (strides := strides_of(x.t())):
        return Operand(x, [x.shape[1], x.shape[0]], strides, along_k=False)
    return None


def strides_of(x: Tensor) -> list[int] | None:
    """Return the strides of ``x`` if a descriptor takes them; along a dimension of 1 any stride will do."""
    rows, cols = x.shape
    unit = ALIGNED // x.itemsize
    down = x.stride(0) if rows > 1 else unit * triton.cdiv(cols, unit)
    dense = (cols == 1 or x.stride(1) == 1) and down >= cols
    return [down, 1] if dense and down % unit == 0 and x.data_ptr() % ALIGNED == 0 else None


def copied(x: Tensor, along_k: bool) -> Operand:
    """A copy of ``x`` [rows, k] that a descriptor can read, in the order that ``x`` has, if that will do."""
    if not along_k and x.stride(0) < x.stride(1):
        flipped = copied(x.t(), along_k=True)
        return replace(flipped, along_k=False)
    unit = ALIGNED // x.itemsize
    rows, cols = x.shape
    padded = torch.empty(rows, unit * triton.cdiv(cols, unit), dtype=x.dtype, device=x.device)
    padded[:, :cols].copy_(x)
    return Operand(padded, [rows, cols], [padded.stride(0), 1], along_k=True)
