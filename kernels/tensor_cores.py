"""Shared parts of kernels on tensor cores: the order of tiles, reading tiles, and accurate sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_device import interpreted, triton_version

try:  # other modules import these from here
    from triton.language.extra.cuda import gdc_launch_dependents as gdc_launch_dependents
    from triton.language.extra.cuda import gdc_wait as gdc_wait
    from triton.tools.tensor_descriptor import TensorDescriptor as TensorDescriptor
except ImportError:  # Triton before 3.4
    TensorDescriptor = gdc_launch_dependents = gdc_wait = None

# "tf32" if torch lets products on CUDA round float32 to it. From torch 2.9 on: if fp32_precision has been set, reading
# allow_tf32 raises; if not, it follows allow_tf32.
float32_setting: Callable[[], str] = (
    partial(torch._C._get_fp32_precision_getter, "cuda", "matmul")
    if hasattr(torch._C, "_get_fp32_precision_getter")
    else lambda: "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
)


def has_descriptors(x: Tensor) -> bool:
    """Return whether kernels on ``x`` can use the tensor memory accelerator: on sm_90, with Triton 3.4 or later."""
    return TensorDescriptor is not None and x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


def has_roles(x: Tensor) -> bool:
    """Return whether kernels on ``x`` can have specialized warps: on sm_90, with Triton 3.6 or later.

    These kernels are written in Gluon, which had other names in older versions. See ``kernels.hopper_pipeline``.
    """
    return triton_version() >= (3, 6) and has_descriptors(x) and not interpreted()


def tiles_of(x: Tensor, rows: int, cols: int, *, descriptors: bool) -> Any:
    """Return the argument by which a kernel accesses tiles of the contiguous ``x``: a descriptor, or ``x`` itself."""
    return TensorDescriptor.from_tensor(x, [rows, cols]) if descriptors else x


ALL_PRODUCTS = 32  # sums of up to this many terms use all four products of ``product``


@triton.jit
def place(index, row_tiles, col_tiles, GROUP: tl.constexpr):
    """Return row and column of tile ``index``. GROUP rows of tiles are visited together and share columns in L2."""
    group = index // (GROUP * col_tiles)
    size = tl.minimum(row_tiles - group * GROUP, GROUP)
    within = index % (GROUP * col_tiles)
    return group * GROUP + within % size, within // size


@triton.jit
def tile(halves, row, col, width, ROWS: tl.constexpr, COLS: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """Load a ROWS x COLS tile of a matrix of whole tiles. ``halves`` is the result of ``tiles_of``."""
    if DESCRIPTORS:
        return halves.load([row, col])
    else:  # noqa: RET505 - without it both branches are compiled
        rows = (row + tl.arange(0, ROWS)).to(tl.int64)
        return tl.load(halves + rows[:, None] * width + (col + tl.arange(0, COLS))[None, :])


@triton.jit
def product(a_hi, a_lo, b_hi, b_lo, ALL: tl.constexpr):
    """Compute a b^T of two matrices in halves, [rows, depth] each. Small products come first, so less is truncated.

    Without ``ALL``, lo lo is left out. It is below 2^-22 of a term, which matters only in sums of a few terms.
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
    """Return ``total + part`` in float32 arithmetic. ``one`` is 1.0 at run time and unknown to the compiler.

    The compiler would merge a plain sum into the accumulation of the dot, inside the tensor core.
    """
    return tl.fma(part, one, total)


@triton.jit
def root(x):
    """Return sqrt(max(x, 0)), correct to half a unit in the last place; ``tl.sqrt`` may be off by twice that.

    The difference matters: the rounding of a distance is a large part of the error of its square.
    """
    x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = tl.rsqrt(x)
    near = x * inverse
    # A step of Newton's method. A factor of -1 becomes part of the instruction; Triton's minus is an extra one.
    y = tl.fma(tl.fma(near * -1.0, near, x), 0.5 * inverse, near)
    return tl.where(y == y, y, x)  # y is NaN for 0 and infinity
