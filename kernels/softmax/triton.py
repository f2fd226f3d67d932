"""Softmax in Triton. Rows that fit into registers are read once; longer rows are read twice, with an online sum.

The online sum keeps the largest x so far and the sum relative to it, and rescales the sum when a larger x is read
(Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3). Each lane keeps its own pair until the end of the row, so
the loop contains no reduction across lanes.

Backward computes dx = y (dy - sum y dy) from y and dy. Rows that fit into registers are read once; 16-bit rows stay
packed until they are used. Longer rows are read twice, the second time from the cache. Eviction hints tell the cache
which data is read again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..second_derivative import no_second_derivative
from ..triton_device import on_device_of, require_floats, require_gpu

# The longest row that a program holds: 32768 columns of float32, with 32 warps. At twice that, registers spill.
MAX_ROW_BYTES = 32_768 * 4

WARP_BYTES = 4096  # bytes of a row for a warp, in the arithmetic type: 32 registers of a thread
PROGRAM_BYTES = 2048  # the least bytes of x for a program: one warp takes several short rows

# How often a row is read, by bytes of an element and columns; all other rows are read once. A row that is kept from the
# maximum to the division takes so many registers that only half of the threads fit on a multiprocessor. A row that is
# read again, from L1, takes fewer. Three reads, for maximum, sum and y, take half as many at 16384 columns of 16 bits.
# Speed relative to a copy on an H200 with one, two and three reads, in bfloat16: 4096 columns 98, 100, 97 %; 16384: 96,
# 92, 100 %; 32768: 77, 70, 97 %. In float32, 16384: 98, 101, 101 %. 8192 columns, not measured, have the value of 4096.
READS = {(2, 4096): 2, (2, 8192): 2, (2, 16_384): 3, (2, 32_768): 3, (4, 16_384): 2}

WIDE_BYTES = 16_384  # bytes of a long row for a step of the loop: 64 registers in float32, with two accumulators
LONGEST = 2**31 - 8192  # columns of a long row; beyond, indices of the last step may need more than 32 bits
WIDE_WARPS = 8  # with 16 warps and twice the bytes, float64 spills, and float32 on sm_80

# Backward, where a row is a pair of rows, of y and dy.
HELD = {2: 8_192, 4: 16_384, 8: 4_096}  # columns of the longest row that a program holds, by bytes of an element
PAIR_TILE = 4096  # the least elements of a program: it takes several short rows
PAIR_WARP_BYTES = 4096  # bytes of each tensor for a warp, in the arithmetic type: 64 registers of a thread for both
# Columns of a step of the loop, and warps, by bytes of an element. These are the most that a program can have, so that
# few rows are in flight and the cache still holds what was read first. bfloat16, 16384 columns, on an H200: 359 us;
# with 16 warps and the same step 378 us, with half the step 406; with both rows held in registers 364. In float64, 32
# warps spill.
STEPS = {2: (8192, 32), 4: (4096, 32), 8: (2048, 16)}


@triton.jit
def _softmax_rows(
    x_ptr,
    y_ptr,
    x_stride,
    rows,
    cols,
    ARITHMETIC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    READS: tl.constexpr,
    UNIT: tl.constexpr,
):
    # x_stride and cols count units of UNIT elements. That shows the compiler how many elements it may load at once; for
    # an argument it only knows whether it is a multiple of 16. Rows are int64: int32 overflows at 2**31 elements.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    # Padding is -inf, which changes neither the maximum nor the sum.
    inside = None if WHOLE else (row < rows) & (col < cols * UNIT)
    padding = None if WHOLE else -float("inf")
    at = x_ptr + row * x_stride * UNIT + col
    # Each read has another eviction hint, or the compiler would merge them into one.
    x = tl.load(at, mask=inside, other=padding, eviction_policy="" if READS == 1 else "evict_last").to(ARITHMETIC)
    largest = tl.max(x, axis=1)[:, None]
    if READS == 3:
        x = tl.load(at, mask=inside, other=padding).to(ARITHMETIC)
    scale = 1 / tl.sum(tl.exp(x - largest), axis=1)[:, None]
    if READS > 1:
        x = tl.load(at, mask=inside, other=padding, eviction_policy="evict_first").to(ARITHMETIC)
    y = tl.exp(x - largest) * scale
    tl.store(y_ptr + row * cols * UNIT + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_wide_row(x_ptr, y_ptr, x_stride, cols, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr, LONG: tl.constexpr):
    if LONG:
        cols = cols.to(tl.int64)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * cols
    lane = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), ARITHMETIC)
    total = tl.zeros((BLOCK,), ARITHMETIC)
    blocks = tl.cdiv(cols, BLOCK)

    for block in range(blocks):
        col = block * BLOCK + lane
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf")).to(ARITHMETIC)
        larger = tl.maximum(largest, x)
        # A lane that has read only -inf would compute -inf - -inf = NaN.
        base = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(largest - base) + tl.exp(x - base)
        largest = larger

    row_max = tl.max(largest, axis=0)
    scale = 1 / tl.sum(total * tl.exp(largest - row_max), axis=0)

    # In reverse order, since the cache still holds what was read last.
    for step in range(blocks):
        col = (blocks - 1 - step) * BLOCK + lane
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf")).to(ARITHMETIC)
        y = tl.exp(x - row_max) * scale
        tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def _keep_packed(tile):
    """Pass the 16-bit ``tile`` through opaque assembly, so that the compiler does not reuse its earlier conversion."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=2)


@triton.jit
def _backward_rows(
    y_ptr,
    dy_ptr,
    dx_ptr,
    dy_stride,
    rows,
    cols,
    ARITHMETIC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    PACKED: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = None if WHOLE else (row < rows) & (col < cols)
    padding = None if WHOLE else 0.0
    y = tl.load(y_ptr + row * cols + col, mask=inside, other=padding)
    dy = tl.load(dy_ptr + row * dy_stride + col, mask=inside, other=padding)
    row_sum = tl.sum(y.to(ARITHMETIC) * dy.to(ARITHMETIC), axis=1)[:, None]
    if PACKED:  # else the compiler keeps the values converted for the sum until dx, in twice the registers
        y, dy = _keep_packed(y), _keep_packed(dy)
    dx = y.to(ARITHMETIC) * (dy.to(ARITHMETIC) - row_sum)
    tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_wide_row(
    y_ptr,
    dy_ptr,
    dx_ptr,
    dy_stride,
    cols,
    ARITHMETIC: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    LONG: tl.constexpr,
):
    if LONG:
        cols = cols.to(tl.int64)
    row = tl.program_id(0).to(tl.int64)
    y_ptr += row * cols
    dy_ptr += row * dy_stride
    dx_ptr += row * cols
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), ARITHMETIC)
    for start in range(0, cols, BLOCK):
        col = start + lane
        inside = None if EVEN else col < cols
        other = None if EVEN else 0.0
        y = tl.load(y_ptr + col, mask=inside, other=other, eviction_policy="evict_last").to(ARITHMETIC)
        dy = tl.load(dy_ptr + col, mask=inside, other=other, eviction_policy="evict_last").to(ARITHMETIC)
        total += y * dy
    row_sum = tl.sum(total, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + lane
        inside = None if EVEN else col < cols
        other = None if EVEN else 0.0
        y = tl.load(y_ptr + col, mask=inside, other=other, eviction_policy="evict_first").to(ARITHMETIC)
        dy = tl.load(dy_ptr + col, mask=inside, other=other, eviction_policy="evict_first").to(ARITHMETIC)
        tl.store(dx_ptr + col, (y * (dy - row_sum)).to(dx_ptr.dtype.element_ty), mask=inside)


def softmax(x: Tensor, *, BLOCK: int | None = None, ROWS: int | None = None, num_warps: int | None = None) -> Tensor:
    """Compute the softmax of each row of ``x``; shapes and dtypes as in ``kernels.softmax``. ``y`` is contiguous.

    An ``x`` whose rows are not contiguous is copied first. The result can be differentiated once.

    Args:
        x: a tensor.
        BLOCK: columns that a program of the forward holds at once, a power of 2. A row that has more is read twice, in
            steps of so many columns. None: chosen by the length of the row and the size of an element.
        ROWS: rows of a program that holds whole rows, a power of 2; None: chosen likewise.
        num_warps: warps of a program of the forward, a power of 2; None: chosen likewise.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.

    """
    if x.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Differentiable.apply(x, BLOCK, ROWS, num_warps)
        return result
    require_gpu(x)
    require_floats(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    cols = x.shape[-1]
    flat = x.reshape(-1, cols)
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    with on_device_of(x):
        _launch(flat, y, cols, BLOCK, ROWS, num_warps)
    return y


def _launch(x: Tensor, y: Tensor, cols: int, most: int | None, rows_asked: int | None, warps_asked: int | None) -> None:
    rows = x.shape[0]
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    itemsize = max(4, x.element_size())  # of the arithmetic type
    block = triton.next_power_of_2(cols)
    if block > (most or MAX_ROW_BYTES // itemsize):
        step, warps = most or WIDE_BYTES // itemsize, warps_asked or WIDE_WARPS
        _softmax_wide_row[(rows,)](
            x, y, x.stride(0), cols, ARITHMETIC=arithmetic, BLOCK=step, LONG=cols > LONGEST, num_warps=warps
        )
        return
    unit = 16 // x.element_size()
    if cols % unit or x.stride(0) % unit:
        unit = 1
    together, warps, reads = shape_for(block, x.element_size(), unit)
    together, warps = rows_asked or together, warps_asked or warps
    _softmax_rows[(triton.cdiv(rows, together),)](
        x,
        y,
        x.stride(0) // unit,
        rows,
        cols // unit,
        ARITHMETIC=arithmetic,
        ROWS=together,
        BLOCK=block,
        WHOLE=cols == block and rows % together == 0,
        READS=reads,
        UNIT=unit,
        num_warps=warps,
    )


def shape_for(block: int, itemsize: int, unit: int) -> tuple[int, int, int]:
    """Return the rows of a program, its warps, and how often each row is read.

    Args:
        block: elements of a row, padded to a power of 2.
        itemsize: bytes of an element.
        unit: elements that can be loaded at once. If 1, each element has its own mask, and a thread holds half as many.

    """
    rows = max(1, PROGRAM_BYTES // (block * itemsize))
    warps = block * max(4, itemsize) // (WARP_BYTES if unit > 1 else WARP_BYTES // 2)
    return rows, min(32, max(1, warps)), READS.get((itemsize, block), 1) if unit > 1 else 1


def _backward(y: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of ``x``, given the contiguous ``y`` and the gradient ``dy`` of ``y``."""
    dx = torch.empty_like(y)
    if y.numel() == 0:
        return dx
    cols = y.shape[-1]
    flat = dy.reshape(-1, cols)
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    with on_device_of(y):
        _launch_backward(y, flat, dx, cols)
    return dx


def _launch_backward(y: Tensor, dy: Tensor, dx: Tensor, cols: int) -> None:
    rows = dy.shape[0]
    arithmetic = tl.float64 if y.dtype == torch.float64 else tl.float32
    block = triton.next_power_of_2(cols)
    if block > HELD[y.element_size()]:
        step, warps = STEPS[y.element_size()]
        _backward_wide_row[(rows,)](
            y,
            dy,
            dx,
            dy.stride(0),
            cols,
            ARITHMETIC=arithmetic,
            BLOCK=step,
            EVEN=cols % step == 0,
            LONG=cols > LONGEST,
            num_warps=warps,
        )
        return
    together = max(1, PAIR_TILE // block)
    warps = backward_warps(block, max(4, y.element_size()))
    _backward_rows[(triton.cdiv(rows, together),)](
        y,
        dy,
        dx,
        dy.stride(0),
        rows,
        cols,
        ARITHMETIC=arithmetic,
        ROWS=together,
        BLOCK=block,
        WHOLE=cols == block and rows % together == 0,
        PACKED=y.is_cuda and y.element_size() == 2,  # the interpreter has no assembly
        num_warps=warps,
    )


def backward_warps(block: int, itemsize: int) -> int:
    """Return the warps whose registers hold two rows of ``block`` elements of ``itemsize`` bytes."""
    return max(4, block * itemsize // PAIR_WARP_BYTES)


class _Differentiable(torch.autograd.Function):
    """``softmax`` for autograd, which saves y only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int | None, rows: int | None, warps: int | None) -> Tensor:
        y = softmax(x, BLOCK=block, ROWS=rows, num_warps=warps)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor], dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _backward(saved[0], dy), None, None, None
