"""Cumulative sum in Triton: each element is read once and written once.

A program sums its rows block by block. Within a block it is a parallel scan; the sum of all blocks before is carried
on. The next block is loaded before the current one is summed.

Blocks of one row follow each other, and other rows hide their latency. So a matrix with few rows leaves multiprocessors
idle, however long its rows are: several programs for one row would have to wait for each other's sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import require_floats, require_gpu
from ..triton_launch import each_time, planned, repeatable

BLOCK_BYTES = 16_384  # the longest block of a row, in the arithmetic type
PROGRAM_BYTES = 8192  # the least of a program, in the arithmetic type: it takes several short rows
THREAD_BYTES = 64  # of a block for a thread, in the arithmetic type: as much again is loaded ahead
LONGEST = 2**31 - 16_384  # columns; beyond, indices of the block after the last may need more than 32 bits


@triton.jit
def _cumsum(
    x_ptr,
    y_ptr,
    x_stride,
    rows,
    cols,
    ARITHMETIC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LONG: tl.constexpr,
):
    if LONG:
        cols = cols.to(tl.int64)
    # int64, because int32 offsets overflow at 2**31 elements.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    x_ptr += row * x_stride
    y_ptr += row * cols
    carry = tl.zeros((ROWS, 1), ARITHMETIC)
    ahead = tl.load(x_ptr + lane, mask=(row < rows) & (lane < cols), other=0)
    for block in range(tl.cdiv(cols, BLOCK)):
        x = ahead.to(ARITHMETIC)
        col = block * BLOCK + lane
        ahead = tl.load(x_ptr + col + BLOCK, mask=(row < rows) & (col < cols - BLOCK), other=0)
        y = tl.cumsum(x, axis=1) + carry
        carry += tl.sum(x, axis=1)[:, None]
        tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=(row < rows) & (col < cols))


@planned
def cumsum(x: Tensor) -> Tensor:
    """Compute the cumulative sum of each row of ``x``; shapes and dtypes as in ``kernels.cumsum``. ``y`` is contiguous.

    If the rows of ``x`` are not contiguous, it is copied first.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or its dtype is none of these.

    """
    require_gpu(x)
    require_floats(x)
    rows, cols = x.shape
    if x.stride(1) != 1:
        x = x.contiguous()
    y = each_time(torch.empty, (rows, cols), dtype=x.dtype, device=x.device)
    if x.numel():
        arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
        together, block, warps = shape_for(cols, max(4, x.element_size()))
        repeatable(_cumsum)[(triton.cdiv(rows, together),)](
            x,
            y,
            x.stride(0),
            rows,
            cols,
            ARITHMETIC=arithmetic,
            ROWS=together,
            BLOCK=block,
            LONG=cols > LONGEST,
            num_warps=warps,
        )
    return y


def shape_for(cols: int, itemsize: int) -> tuple[int, int, int]:
    """Return the rows of a program, the columns of a block, and the warps, for ``itemsize`` bytes of arithmetic."""
    block = min(triton.next_power_of_2(cols), BLOCK_BYTES // itemsize)
    together = max(1, PROGRAM_BYTES // (block * itemsize))
    return together, block, max(1, together * block * itemsize // (32 * THREAD_BYTES))
