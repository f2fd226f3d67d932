"""Padded copies of matrices: rows are aligned for the copy engine and for loads of 16 bytes, and end in zeros.

The kernel that copies allows the next kernel of its stream to start at once. It does so if it is launched with
``launch_pdl=True`` (programmatic dependent launch), and must call ``gdc_wait`` before it reads or writes memory.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tensor_cores import gdc_launch_dependents, has_descriptors
from .triton_device import interpreted
from .triton_launch import each_time, repeatable

ALIGNED = 16  # bytes: the base address and the row stride of a descriptor are multiples of this
LINE = 128  # bytes: rows of padded matrices begin at multiples of this
ROWS, COLS = 8, 512  # rows and columns that a program copies

RECORDED = 12_030  # the first CUDA driver whose graphs can record that a kernel starts early

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _pad_one(program, x, out, rows, cols, row_stride, col_stride, width, ROWS: tl.constexpr, COLS: tl.constexpr):
    across = tl.cdiv(width, COLS)
    i, j = program // across * ROWS + tl.arange(0, ROWS), program % across * COLS + tl.arange(0, COLS)
    row, j = i.to(tl.int64)[:, None], j[None, :]
    tile = tl.load(x + row * row_stride + j.to(tl.int64) * col_stride, mask=(row < rows) & (j < cols), other=0)
    tl.store(out + row * width + j, tile, mask=(row < rows) & (j < width))


@triton.jit
def _pad(
    x, out, rows, cols, row_stride, col_stride, width,
    x_2, out_2, rows_2, cols_2, row_stride_2, col_stride_2, width_2,
    ROWS: tl.constexpr, COLS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
    programs = tl.cdiv(rows, ROWS) * tl.cdiv(width, COLS)  # of the first matrix
    if tl.program_id(0) < programs:
        _pad_one(tl.program_id(0), x, out, rows, cols, row_stride, col_stride, width, ROWS, COLS)
    else:
        _pad_one(
            tl.program_id(0) - programs,
            x_2, out_2, rows_2, cols_2, row_stride_2, col_stride_2, width_2, ROWS, COLS,
        )  # fmt: skip


def room(rows: int, cols: int, like: Tensor, unit: int = ALIGNED) -> Tensor:
    """Return an uninitialized matrix [rows, cols] whose rows begin at multiples of ``unit`` bytes.

    It is contiguous if that is possible. If not, rows begin at multiples of ``LINE`` bytes.
    """
    size = like.element_size()
    if cols * size % unit == 0:
        return each_time(torch.empty, rows, cols, dtype=like.dtype, device=like.device)
    width = triton.cdiv(cols * size, LINE) * LINE // size
    return each_time(torch.empty, rows, width, dtype=like.dtype, device=like.device)[:, :cols]


def padded(*matrices: Tensor, unit: int = ALIGNED) -> list[Tensor]:
    """Return copies in ``room`` of one or two matrices of one dtype, with zeros after each row up to the next one.

    One kernel copies both.
    """
    copies = [room(x.shape[0], x.shape[1], x, unit) for x in matrices]
    bits = BITS[matrices[0].element_size()]
    sides, programs = [], 0
    for x, out in zip(matrices, copies, strict=True):
        sides.append((x.detach().view(bits), out.view(bits), *x.shape, *x.stride(), out.stride(0)))
        programs += triton.cdiv(x.shape[0], ROWS) * triton.cdiv(out.stride(0), COLS)
    early = supports_early_start(copies[0])
    repeatable(_pad)[(programs,)](*sides[0], *sides[-1], ROWS=ROWS, COLS=COLS, EARLY=early, num_warps=4)
    return copies


def supports_early_start(x: Tensor) -> bool:
    """Return whether a kernel on ``x`` can start before the one that copies for it has ended."""
    plain = not interpreted() and not torch.compiler.is_compiling()
    return plain and has_descriptors(x) and _driver() >= RECORDED


@cache
def _driver() -> int:
    """Return the newest version of CUDA that the driver supports, such as 12030."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value
