"""Rows of a matrix in whole vectors of 16 bytes, wherever they begin, with the elements at their edges one by one."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

VECTOR = 16  # bytes
LONGEST = 2**31 - 32_768  # columns of a row; beyond, indices of the last step may need more than 32 bits


@dataclass(frozen=True)
class Rows:
    """The tensor [rows, cols] and the GPU that a launch depends on. The stride is in elements."""

    rows: int
    cols: int
    stride: int
    itemsize: int
    multiprocessors: int
    l2: int  # bytes of the cache

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return self.cols * self.itemsize

    @property
    def wide(self) -> int:
        """Bytes of an element in the arithmetic type."""
        return max(4, self.itemsize)


@dataclass(frozen=True)
class Access:
    """How rows are loaded: ``unit`` elements at once, and element by element at the edges."""

    unit: int
    edges: bool

    @property
    def scalar(self) -> bool:
        """Whether elements are loaded one by one."""
        return self.unit == 1

    @property
    def stride_unit(self) -> int:
        """Elements in which the kernels count strides and lengths."""
        return 1 if self.edges else self.unit


def access(x: Rows, together: int) -> Access:
    """Return how ``together`` rows are loaded by a program."""
    vector = VECTOR // x.itemsize
    apart = 0 if x.rows == 1 else x.stride
    unit = next(unit for unit in (8, 4, 2, 1) if unit <= vector and x.cols % unit == apart % unit == 0)
    # Accesses of 8 bytes are as fast as memory; for shorter ones the edges are worth their instructions. The output,
    # whose rows are x.cols apart, must begin at the same place of a vector.
    alike = x.rows == 1 or (x.cols - apart) % vector == 0
    if together == 1 and unit * x.itemsize < 8 and alike and x.cols >= 2 * vector:
        return Access(vector, edges=True)
    return Access(unit, edges=False)


@triton.jit
def first_vector(row, stride, cols, UNIT: tl.constexpr, EDGES: tl.constexpr):
    """Return where the first whole vector of a row begins, the elements before it, and those in whole vectors.

    Without edges, ``stride`` and ``cols`` count units of UNIT elements. That shows the compiler how many elements it
    may load at once; for an argument it only knows whether it is a multiple of 16.
    """
    first = row * stride * UNIT
    head = 0
    whole = cols * UNIT
    if EDGES:
        vector = (row * stride + (UNIT - 1)) // UNIT
        first = vector * UNIT
        head = (first - row * stride).to(cols.dtype)
        whole = (cols - head) // UNIT * UNIT
    return first, head, whole


@triton.jit
def edges(head, whole, cols, UNIT: tl.constexpr):
    """Return the columns outside of whole vectors, counted from the first vector, and which are in the row."""
    lane = tl.arange(0, 2 * UNIT)
    col = tl.where(lane < UNIT, lane - UNIT, lane - UNIT + whole)
    return col, (col >= -head) & (col < cols - head)


@triton.jit
def finite(largest):
    """Return what is subtracted from x: ``largest``, but 0 where all x are -inf, since -inf - -inf would be NaN."""
    return tl.where(largest == -float("inf"), 0.0, largest)


@triton.jit
def keep_packed(tile, PACKED: tl.constexpr):
    """Return ``tile``, of 16 bits if PACKED, so that the compiler converts it anew for what follows.

    Else it would keep what was converted before, in twice the registers.
    """
    if PACKED:
        tile = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=2)
    return tile
