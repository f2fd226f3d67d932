"""Operands that a tensor memory descriptor can read, and copies of those that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import triton
from torch import Tensor

from ..padding import ALIGNED, LINE, padded
from ..tensor_cores import TensorDescriptor


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor [rows, k], or its transpose, as a descriptor reads it."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    along_k: bool  # shape is [rows, k], else [k, rows]
    copied: bool = False

    def tiles(self, block_rows: int, block_k: int) -> TensorDescriptor:
        """Return a descriptor of ``block_rows`` x ``block_k`` tiles. It holds an address, so make one for each call."""
        block = [block_rows, block_k] if self.along_k else [block_k, block_rows]
        return TensorDescriptor(self.base, self.shape, self.strides, block)


def described(y: Tensor, block: list[int]) -> TensorDescriptor | None:
    """Return a descriptor that stores tiles of shape ``block`` into ``y``; None if its rows are not aligned."""
    strides = strides_of(y)
    return TensorDescriptor(y, list(y.shape), strides, block) if strides else None


def store_unit(y: Tensor) -> int:
    """Return how many elements of a row of the contiguous ``y`` [m, n] one store of a thread can write."""
    return gcd(ALIGNED // y.itemsize, y.shape[1]) if y.data_ptr() % ALIGNED == 0 else 1


def in_place(x: Tensor, along_k: bool) -> Operand | None:
    """Return ``x`` [rows, k] as an operand without a copy; None if a descriptor cannot read it.

    ``along_k``: the rows must run along k.
    """
    if strides := strides_of(x):
        return Operand(x, list(x.shape), strides, along_k=True)
    if not along_k and (strides := strides_of(x.t())):
        return Operand(x, [x.shape[1], x.shape[0]], strides, along_k=False)
    return None


def crossed(x: Tensor, along_k: bool) -> bool:
    """Return whether a descriptor reads ``x`` [rows, k] across k, where each row of a tile lies in two lines of L2.

    If it reads a copy of ``x``, as it does if the rows must run ``along_k``, those of the copy begin at lines.
    """
    apart, begin = x.stride(1) * x.itemsize, x.data_ptr()  # rows in memory
    readable = x.stride(0) == 1 and apart % ALIGNED == begin % ALIGNED == 0
    return not along_k and readable and (apart % LINE > 0 or begin % LINE > 0)


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


def whole_loads(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two matrices that loads of 16 bytes can read, or copies with zeros after each row or column."""
    units = [load_unit(x) for x in (a, b)]
    fits = [unit * a.itemsize == ALIGNED for _, unit in units]
    return _with_copies((a, b), fits, [not along_row for along_row, _ in units])


def readable(a: Tensor, b: Tensor, along_k: bool, lined: Sequence[bool]) -> tuple[Operand, Operand]:
    """Return ``a`` [m, k] and ``b`` [n, k] as operands, copied if a descriptor cannot read them or if ``lined``.

    A copy has the order of its tensor unless ``along_k``.
    """
    found = [None if copy else in_place(x, along_k) for x, copy in zip((a, b), lined, strict=True)]
    turned = [not along_k and x.stride(0) < x.stride(1) for x in (a, b)]
    copies = _with_copies((a, b), [operand is not None for operand in found], turned)
    left, right = (operand or _operand(x, turn) for operand, x, turn in zip(found, copies, turned, strict=True))
    return left, right


def _with_copies(pair: tuple[Tensor, Tensor], fits: list[bool], turned: list[bool]) -> tuple[Tensor, Tensor]:
    """Return ``pair``, of which those that do not fit are copied, by columns if ``turned``."""
    laid = [x.t() if turn else x for x, turn in zip(pair, turned, strict=True)]
    missing = [x for x, fit in zip(laid, fits, strict=True) if not fit]
    copies = iter(padded(*missing, unit=LINE) if missing else [])
    first, second = (x if fit else next(copies) for x, fit in zip(laid, fits, strict=True))
    return first.t() if turned[0] else first, second.t() if turned[1] else second


def _operand(x: Tensor, turned: bool) -> Operand:
    base = x.t() if turned else x
    return Operand(base, list(base.shape), [base.stride(0), 1], along_k=not turned, copied=True)
