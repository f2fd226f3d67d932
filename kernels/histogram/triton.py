"""Histogram in Triton. Each program counts many blocks in registers, and adds its counts to the result at the end.

``tl.histogram`` counts a block: a warp votes on each bit of the bins, and each of its threads keeps the counts of some.
Its time grows with the bins. For many bins, each element is added to the result by itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import multiprocessors, require_gpu
from ..triton_launch import each_time, planned, repeatable
from ..unsupported import Unsupported

BLOCK = 2048  # elements: with 4 warps, four accesses of 128 bits of a thread
WARPS = 4
MOST_BINS = 1024  # for tl.histogram
PROGRAMS = 8  # of a multiprocessor


@triton.jit
def _bins_of(x, bins):
    """Return the bin of each element, 0 for those outside, and which are inside."""
    inside = (x >= 0) & (x <= 1)
    return tl.minimum((tl.where(inside, x, 0.0) * bins).to(tl.int32), bins - 1), inside


@triton.jit
def _count_blocks(x_ptr, y_ptr, count, bins, BINS: tl.constexpr, BLOCK: tl.constexpr):
    # int64, because int32 offsets overflow at 2**31 elements.
    lane = tl.arange(0, BLOCK).to(tl.int64)
    counts = tl.zeros((BINS,), tl.int32)
    outside = tl.zeros((BLOCK,), tl.int32)
    blocks = (count - 1) // BLOCK + 1  # tl.cdiv would overflow just below 2**31 elements
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        index = block * BLOCK + lane
        x = tl.load(x_ptr + index, mask=index < count, other=-1.0)
        bin, inside = _bins_of(x, bins)
        counts += tl.histogram(bin, BINS)
        outside += tl.where(inside, 0, 1)
    # The first bin has counted the elements outside too: tl.histogram has no mask in Triton 3.2.
    bin = tl.arange(0, BINS)
    counts -= tl.where(bin == 0, tl.sum(outside, axis=0), 0)
    tl.atomic_add(y_ptr + bin, counts.to(tl.int64), mask=(bin < bins) & (counts > 0))


@triton.jit
def _count_elements(x_ptr, y_ptr, count, bins, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < count, other=-1.0)
    bin, inside = _bins_of(x, bins)
    tl.atomic_add(y_ptr + bin, tl.full((BLOCK,), 1, tl.int64), mask=inside)


@planned
def histogram(x: Tensor, *, bins: int) -> Tensor:
    """Count the elements of ``x`` in each bin; shapes and dtypes as in ``kernels.histogram``.

    ``x`` is copied first if it is not contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or it is not float32.

    """
    require_gpu(x)
    if x.dtype != torch.float32:
        raise Unsupported(f"this kernel takes torch.float32; convert from {x.dtype}")
    x = x.contiguous()
    y = each_time(torch.zeros, bins, dtype=torch.int64, device=x.device)
    blocks = triton.cdiv(x.numel(), BLOCK)
    if not blocks:
        return y
    if bins <= MOST_BINS:
        programs = min(blocks, PROGRAMS * multiprocessors(x))
        padded = triton.next_power_of_2(bins)
        repeatable(_count_blocks)[(programs,)](x, y, x.numel(), bins, BINS=padded, BLOCK=BLOCK, num_warps=WARPS)
    else:
        repeatable(_count_elements)[(blocks,)](x, y, x.numel(), bins, BLOCK=BLOCK, num_warps=WARPS)
    return y
