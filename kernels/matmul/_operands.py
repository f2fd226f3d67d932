"""Operands that a tensor memory descriptor can read, and copies of those that it cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import triton
from torch import Tensor

from ..padding import ALIGNED, padded
from ..tensor_cores import TensorDescriptor


class _Described(TensorDescriptor or object):  # type: ignore[misc]
    """A descriptor without checks. Checking takes 1 us of the about 10 us that a launch takes on the host."""

    def __post_init__(self) -> None:
        """Skip the checks of TensorDescriptor: ``strides_of`` has made them."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor [rows, k], or its transpose, as a descriptor reads it."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    along_k: bool  # shape is [rows, k], else [k, rows]

    def tiles(self, block_rows: int, block_k: int) -> TensorDescriptor:
        """Return a descriptor of ``block_rows`` x ``block_k`` tiles. It holds an address, so make one for each call."""
        block = [block_rows, block_k] if self.along_k else [block_k, block_rows]
        return _Described(self.base, self.shape, self.strides, block)


def described(y: Tensor, block: list[int]) -> TensorDescriptor | None:
    """Return a descriptor that stores tiles of shape ``block`` into ``y``; None if its rows are not aligned."""
    strides = strides_of(y)
    return _Described(y, list(y.shape), strides, block) if strides else None


def in_place(x: Tensor, along_k: bool) -> Operand | None:
    """Return ``x`` [rows, k] as an operand without a copy; None if a descriptor cannot read it.

    ``along_k``: the rows must run along k.
    """
    if strides := strides_of(x):
        return Operand(x, list(x.shape), strides, along_k=True)
    if not along_k and (strides := strides_of(x.t())):
        return Operand(x, [x.shape[1], x.shape[0]], strides, along_k=False)
    return None


def strides_of(x: Tensor) -> list[int] | None:
    """Return the strides of ``x`` for a descriptor, or None if it cannot have them.

    The stride of a dimension of size 1 does not matter.
    """
    rows, cols = x.shape
    unit = ALIGNED // x.itemsize
    down = x.stride(0) if rows > 1 else unit * triton.cdiv(cols, unit)
    dense = (cols == 1 or x.stride(1) == 1) and down >= cols
    return [down, 1] if dense and down % unit == 0 and x.data_ptr() % ALIGNED == 0 else None


def load_unit(x: Tensor, *, zeros: bool = False) -> tuple[bool, int]:
    """Return whether the rows of ``x`` are contiguous, else its columns, and how many elements one load can read.

    A load reads up to 16 bytes. Rows must begin at multiples of a load and consist of whole loads. With ``zeros`` they
    need not, because zeros follow each row up to a whole load. The same applies to columns.
    """
    along = 1 if abs(x.stride(1)) <= abs(x.stride(0)) or x.shape[0] == 1 else 0
    if x.stride(along) != 1 or x.data_ptr() % ALIGNED:
        return along == 1, 1
    others = x.stride(1 - along) if x.shape[1 - along] > 1 else 0
    return along == 1, gcd(ALIGNED // x.itemsize, others, 0 if zeros else x.shape[along])


def whole_loads(x: Tensor) -> Tensor:
    """Return ``x`` if loads of 16 bytes can read it, else a copy with zeros after each row or column."""
    along_row, unit = load_unit(x)
    if unit * x.itemsize == ALIGNED:
        return x
    return padded(x) if along_row else padded(x.t()).t()


def copied(x: Tensor, along_k: bool) -> Operand:
    """Copy ``x`` [rows, k] so that a descriptor can read it. The copy has the order of ``x`` unless ``along_k``."""
    if not along_k and x.stride(0) < x.stride(1):
        flipped = copied(x.t(), along_k=True)
        return replace(flipped, along_k=False)
    copy = padded(x)
    return Operand(copy, list(x.shape), [copy.stride(0), 1], along_k=True)
