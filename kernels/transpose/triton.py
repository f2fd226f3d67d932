"""Transpose in Triton, tile by tile. A tile is read along the rows of x and written along the rows of y.

Triton moves the tile from the layout of the loads to that of the stores through shared memory, so both are coalesced.
Programs that run at the same time have tiles below one another, so that together they write whole rows of y. To read
whole rows of x instead is 3 to 4 % slower.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import multiprocessors, require_gpu
from ..triton_launch import each_time, planned, repeatable

ROW_BYTES = 256  # bytes of a row of a square tile, in x and in y: two cache lines
NARROW = 32, 64  # rows and columns of a tile of 8 or 16 bits, if rows are not aligned or square tiles are not MANY
MANY = 32  # for each multiprocessor
WARPS = 8  # of a program


@triton.jit
def _transpose(x_ptr, y_ptr, x_stride, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    height = (rows - 1) // ROWS + 1  # tl.cdiv would overflow just below 2**31 rows
    # int64, because int32 offsets overflow at 2**31 elements.
    row = (tl.program_id(0) % height).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tl.program_id(0) // height).to(tl.int64) * COLS + tl.arange(0, COLS)
    x = tl.load(x_ptr + row[:, None] * x_stride + col[None, :], mask=(row[:, None] < rows) & (col[None, :] < cols))
    tl.store(
        y_ptr + col[:, None] * rows + row[None, :], tl.trans(x), mask=(col[:, None] < cols) & (row[None, :] < rows)
    )


@planned
def transpose(x: Tensor) -> Tensor:
    """Transpose ``x``; shapes and dtypes as in ``kernels.transpose``.

    If the rows of ``x`` are not contiguous, it is copied first.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off.

    """
    require_gpu(x)
    rows, cols = x.shape
    if x.stride(1) != 1:
        x = x.contiguous()
    y = each_time(torch.empty, (cols, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        tile_rows, tile_cols = tile_for(rows, cols, x.element_size(), multiprocessors(x))
        repeatable(_transpose)[(triton.cdiv(rows, tile_rows) * triton.cdiv(cols, tile_cols),)](
            x, y, x.stride(0), rows, cols, ROWS=tile_rows, COLS=tile_cols, num_warps=WARPS
        )
    return y


def tile_for(rows: int, cols: int, itemsize: int, processors: int) -> tuple[int, int]:
    """Return the rows and columns of a tile of elements of ``itemsize`` bytes."""
    side = min(128, ROW_BYTES // itemsize)
    aligned = rows * itemsize % 16 == cols * itemsize % 16 == 0
    many = triton.cdiv(rows, side) * triton.cdiv(cols, side) >= MANY * processors
    return NARROW if itemsize < 4 and not (aligned and many) else (side, side)
