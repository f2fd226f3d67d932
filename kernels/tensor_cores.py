"""What kernels on tensor cores have in common: which tile is whose, how tiles are read, and exact sums."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.tools.tensor_descriptor import TensorDescriptor as TensorDescriptor  # for others too
except ImportError:  # Triton before 3.4
    TensorDescriptor = None


def has_descriptors(x: Tensor) -> bool:
    """Whether the tensor memory accelerator can copy tiles for kernels on ``x``: sm_90, with Triton 3.4 or later."""
    return TensorDescriptor is not None and x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


def has_roles(x: Tensor) -> bool:
    """Whether warps of a kernel on ``x`` can have roles (``kernels.hopper_pipeline``): sm_90, with Triton 3.6 or later.

    Gluon, which those kernels are written in, is older, but called these things differently.
    """
    new = tuple(int(word) for word in triton.__version__.split(".")[:2]) >= (3, 6)
    return new and has_descriptors(x) and os.environ.get("TRITON_INTERPRET") != "1"


def tiles_of(x: Tensor, rows: int, cols: int, *, descriptors: bool) -> Any:
    """What a kernel reads or writes tiles of the contiguous ``x`` by: a descriptor, or a pointer."""
    return TensorDescriptor.from_tensor(x, [rows, cols]) if descriptors else x


def processors(x: Tensor) -> int:
    """Multiprocessors of the GPU that ``x`` is on; 1 for the interpreter."""
    return _processors_of(x.device) if x.is_cuda else 1


@cache
def _processors_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


ALL_PRODUCTS = 32  # terms of a sum up to which ``product`` is to take all of them


@triton.jit
def place(index, row_tiles, col_tiles, GROUP: tl.constexpr):
    """Row and column of tile ``index``, where GROUP rows of tiles are walked through together and so share columns."""
    group = index // (GROUP * col_tiles)
    size = tl.minimum(row_tiles - group * GROUP, GROUP)
    within = index % (GROUP * col_tiles)
    return group * GROUP + within % size, within // size


@triton.jit
def tile(halves, row, col, width, ROWS: tl.constexpr, COLS: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """ROWS x COLS of a matrix that holds whole tiles, from ``tiles_of`` it."""
    if DESCRIPTORS:
        return halves.load([row, col])
    else:  # noqa: RET505 - without it both branches are compiled
        rows = (row + tl.arange(0, ROWS)).to(tl.int64)
        return tl.load(halves + rows[:, None] * width + (col + tl.arange(0, COLS))[None, :])


@triton.jit
def product(a_hi, a_lo, b_hi, b_lo, ALL: tl.constexpr):
    """Multiply matrices in halves, [rows, depth] each, as a b^T; small products first, while little is cut off.

    Without ``ALL``, lo lo is left out: below 2^-22 of a term, which shows in sums of a few terms only.
    """
    if ALL:
        part = tl.dot(a_lo, b_lo.T)
        part = tl.dot(a_hi, b_lo.T, part)
    else:
        part = tl.dot(a_hi, b_lo.T)
    part = tl.dot(a_lo, b_hi.T, part)
    return tl.dot(a_hi, b_hi.T, part)


@triton.jit
def promote(total, part, one):
    """``total + part`` in float32 arithmetic; ``one`` is 1.0, which the compiler must not know.

    It takes a plain sum for the accumulation that a dot can do by itself, and the sum ends up in the tensor core.
    """
    return tl.fma(part, one, total)


@triton.jit
def root(x):
    """sqrt(x), and 0 of what is below 0, to half a unit; ``tl.sqrt`` may be off by twice that.

    It matters: the rounding of a distance is a good part of the error that its square is left with.
    """
    x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = tl.rsqrt(x)
    near = x * inverse
    # A step of Newton's method. A sign that comes of -1 is part of the instruction; Triton's own minus is one more.
    y = tl.fma(tl.fma(near * -1.0, near, x), 0.5 * inverse, near)
    return tl.where(y == y, y, x)  # 0 and infinity have no such inverse
