"""Padded copies of matrices: rows are aligned for the copy engine and for loads of 16 bytes, and end in zeros."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_device import on_device_of

ALIGNED = 16  # bytes: the base address and the row stride of a descriptor are multiples of this
LINE = 128  # bytes: rows of padded matrices begin at multiples of this
ROWS, COLS = 8, 512  # rows and columns that a program copies

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _pad(x, out, rows, cols, row_stride, col_stride, width, ROWS: tl.constexpr, COLS: tl.constexpr):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    row, j = i.to(tl.int64)[:, None], j[None, :]
    tile = tl.load(x + row * row_stride + j.to(tl.int64) * col_stride, mask=(row < rows) & (j < cols), other=0)
    tl.store(out + row * width + j, tile, mask=(row < rows) & (j < width))


def room(rows: int, cols: int, like: Tensor) -> Tensor:
    """Return an uninitialized matrix [rows, cols] whose rows begin at multiples of ``ALIGNED`` bytes."""
    size = like.element_size()
    if cols * size % ALIGNED == 0:
        return torch.empty(rows, cols, dtype=like.dtype, device=like.device)
    width = triton.cdiv(cols * size, LINE) * LINE // size
    return torch.empty(rows, width, dtype=like.dtype, device=like.device)[:, :cols]


def padded(x: Tensor) -> Tensor:
    """Return a copy of ``x`` [rows, cols] in ``room``, with zeros after each row up to the next one."""
    rows, cols = x.shape
    out = room(rows, cols, x)
    bits, width = BITS[x.element_size()], out.stride(0)
    with on_device_of(x):
        _pad[triton.cdiv(rows, ROWS), triton.cdiv(width, COLS)](
            x.detach().view(bits),
            out.view(bits),
            rows,
            cols,
            *x.stride(),
            width,
            ROWS=ROWS,
            COLS=COLS,
            num_warps=4,
        )
    return out
