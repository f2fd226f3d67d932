"""Transpose in Triton, tile by tile. A tile is read along the rows of x and written along the rows of y.

Triton moves the tile from the layout of the loads to that of the stores through shared memory, so both are coalesced.
Programs that run at the same time have tiles from few rows and few columns of tiles, so that they read and write memory
in pieces of several KB, not of one tile's width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import on_device_of, require_gpu

ROW_BYTES = 256  # bytes of a row of a square tile, in x and in y: two cache lines
THREAD_BYTES = 128  # bytes of a tile for a thread: eight accesses of 128 bits
BAND = 16  # rows of tiles that are walked together: pieces of 16 * ROW_BYTES = 4 KB in y


@triton.jit
def _transpose(x_ptr, y_ptr, x_stride, rows, cols, TILE: tl.constexpr, BAND: tl.constexpr):
    of_band = BAND * tl.cdiv(cols, TILE)
    band = tl.program_id(0) // of_band
    tile = tl.program_id(0) % of_band
    height = tl.minimum(tl.cdiv(rows, TILE) - band * BAND, BAND)
    lane = tl.arange(0, TILE)
    # int64, because int32 offsets overflow at 2**31 elements.
    row = (band * BAND + tile % height).to(tl.int64) * TILE + lane
    col = (tile // height).to(tl.int64) * TILE + lane
    x = tl.load(x_ptr + row[:, None] * x_stride + col[None, :], mask=(row[:, None] < rows) & (col[None, :] < cols))
    tl.store(
        y_ptr + col[:, None] * rows + row[None, :], tl.trans(x), mask=(col[:, None] < cols) & (row[None, :] < rows)
    )


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
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        tile, warps = shape_for(x.element_size())
        with on_device_of(x):
            _transpose[(triton.cdiv(rows, tile) * triton.cdiv(cols, tile),)](
                x, y, x.stride(0), rows, cols, TILE=tile, BAND=BAND, num_warps=warps
            )
    return y


def shape_for(itemsize: int) -> tuple[int, int]:
    """Return the rows and columns of a tile, and the warps of its program, for elements of ``itemsize`` bytes."""
    tile = min(128, ROW_BYTES // itemsize)
    return tile, max(1, tile * tile * itemsize // (32 * THREAD_BYTES))
