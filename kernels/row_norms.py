"""LayerNorm and RMSNorm of rows, with the gradients of weight and bias, in Triton.

A program holds whole rows in registers, so x is read once, but for some, which are read again from the cache, so that
registers hold more rows at a time. Long rows, and those that a power of two divides into few parts, are read twice in
steps. The variance takes one pass: sums of squares around means are merged, first in each lane and then across lanes
(Welford 1962, Chan et al. 1979). So a large mean costs no digits. Where a row does not fill its lanes, the mean comes
first, and then the squares around it.

Backward reads x and dy once and writes dx. Each program takes rows in turn, and adds up what they contribute to the
gradients of weight and bias; a second kernel adds the sums of all programs, always in the same order. If rows are too
long for that, dx is one kernel, and the sums of columns are another, which reads x and dy again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .differentiable import apply, no_second_derivative
from .triton_device import arithmetic, multiprocessors, require_floats, require_gpu
from .triton_launch import each_time, planned, repeatable

Asked = tuple[int | None, int | None]  # rows of a program of the forward, and its warps; None: chosen

VECTOR = 16  # bytes
HELD = 8192  # columns of a row that the forward holds
HELD_BACKWARD = {2: 16_384, 4: 16_384, 8: 4_096}  # and the backward, which holds dy too, by bytes of an element
# And the backward that keeps sums for the weights as well, with or without those of the bias.
HELD_SUMS = {
    (2, False): 16_384,
    (2, True): 8_192,
    (4, False): 16_384,
    (4, True): 8_192,
    (8, False): 2_048,
    (8, True): 2_048,
}
TILE = 1024  # elements, at least, of a program: it takes several short rows
WARP_ELEMENTS, BACKWARD_WARP_ELEMENTS = 1024, 512  # of a tile, for each warp
# Warps of a program that holds a row of LayerNorm, and whether it reads the row again, by bytes of an element and
# columns. Else 8 warps at most hold the row.
FORWARD = {(2, 4_096): (4, True), (4, 2_048): (8, True), (4, 4_096): (16, False), (4, 8_192): (16, False)}
STEP, LONG_STEP = 32_768, 8_192  # bytes, at most, that are read at once of another row, and of one of many steps
FEW, WARPS = 5, 16  # steps of which the kernel knows how many there are, and warps of a program that takes steps
STEP_BACKWARD = 4096  # elements
COLUMN_ROWS, COLUMNS = 32, 128  # of a tile that sums columns
PARTS, ADDED = 64, 32  # of a tile of their sums, which are added
PROGRAMS = 4  # of a multiprocessor, at most, where each keeps sums


@triton.jit
def _of_rows(ptr, stride, row, rows, ROWS: tl.constexpr, UNIT: tl.constexpr):
    """Return a number of each of ROWS rows from ``row`` on. Loaded as a column, each thread would load it 8 times.

    ``row`` is int64, and ``stride`` counts units of UNIT elements, of which there may be 2**31 between two rows.
    """
    if ROWS == 1:
        found = tl.load(ptr + row * stride * UNIT)
    else:
        lane = row + tl.arange(0, ROWS)
        found = tl.load(ptr + lane * stride * UNIT, mask=lane < rows, other=0.0)[:, None]
    return found


@triton.jit
def _merge(mean, squares, count, other_mean, other_squares, other_count):
    both = count + other_count
    share = other_count / both
    apart = other_mean - mean
    return mean + apart * share, squares + other_squares + apart * apart * (count * share), both


@triton.jit
def _moments(mean, squares, count, total, AT_ONCE: tl.constexpr):
    """Return mean and variance of each row from the mean of each lane, and the sum of squares around it."""
    if AT_ONCE:  # by one exchange between warps; counts must be known, since to divide by them takes longer
        mean, squares, _ = tl.reduce((mean, squares, count), 1, _merge)
        centre = mean[:, None]
    else:
        centre = tl.sum(mean * count, axis=1)[:, None] / total
        centre += tl.sum((mean - centre) * count, axis=1)[:, None] / total  # that of a constant row becomes exact
        squares = tl.sum(squares + count * (mean - centre) * (mean - centre), axis=1)
    return centre, squares[:, None] / total


@triton.jit
def _forward_rows(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, stride, rows, cols,
    EPS: tl.constexpr, MEAN: tl.constexpr, SAVE: tl.constexpr, ARITHMETIC: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, UNIT: tl.constexpr, AGAIN: tl.constexpr, HINT: tl.constexpr, EVEN: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    # ``stride`` and ``cols`` count units of UNIT elements, which shows the compiler how many it may load at once. Rows
    # are int64: int32 overflows at 2**31 elements.
    top = tl.program_id(0).to(tl.int64) * ROWS
    row = (top + tl.arange(0, ROWS))[:, None]
    width = tl.zeros((), tl.int32) + cols * UNIT
    count = width.to(ARITHMETIC)
    col = tl.arange(0, BLOCK)[None, :]
    across = tl.full((1, BLOCK), True, tl.int1) if EVEN else col < width  # the compiler leaves out a mask that is true
    inside = tl.full((ROWS, BLOCK), True, tl.int1) if EVEN else (row < rows) & across
    at = x_ptr + row * stride * UNIT + col
    # Reads with another hint are not merged with this one, so that registers need not hold x.
    x = tl.load(at, mask=inside, other=0.0, eviction_policy=HINT).to(ARITHMETIC)
    if MEAN:
        nothing = tl.zeros((ROWS, BLOCK), ARITHMETIC)
        mean, variance = _moments(x, nothing, inside.to(ARITHMETIC), count, AT_ONCE)
    else:
        variance = tl.sum(x * x, axis=1)[:, None] / count
    rstd = 1 / tl.sqrt(variance + EPS)
    if AGAIN:
        x = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first").to(ARITHMETIC)
    # Each program reads w and b, which stay in L1 while rows pass through it.
    w = tl.load(w_ptr + col, mask=across, other=0.0, eviction_policy="evict_last").to(ARITHMETIC)
    if MEAN:
        b = tl.load(b_ptr + col, mask=across, other=0.0, eviction_policy="evict_last").to(ARITHMETIC)
        y = (x - mean) * rstd * w + b
    else:
        y = x * rstd * w
    tl.store(y_ptr + row * width + col, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")
    if SAVE:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)
        if MEAN:
            tl.store(mean_ptr + row, mean, mask=row < rows)


@triton.jit
def _forward_long(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, stride, cols,
    EPS: tl.constexpr, MEAN: tl.constexpr, SAVE: tl.constexpr, ARITHMETIC: tl.constexpr, STEP: tl.constexpr,
    UNIT: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    # STEPS is 0 for many of them, so that rows of any length share a kernel; EVEN as above.
    row = tl.program_id(0).to(tl.int64)
    width = (tl.zeros((), tl.int64) + cols) * UNIT
    lane = tl.arange(0, STEP)[None, :]
    steps = STEPS if STEPS else tl.cdiv(width, STEP)
    every = tl.full((1, STEP), True, tl.int1)
    inside = every if EVEN else lane < width
    first = tl.load(x_ptr + row * stride * UNIT + lane, mask=inside, other=0.0, eviction_policy="evict_last")
    first = first.to(ARITHMETIC)
    apart = tl.zeros((1, STEP), ARITHMETIC)
    squares = tl.zeros((1, STEP), ARITHMETIC) if MEAN else first * first
    for step in tl.range(1, steps, loop_unroll_factor=STEPS - 1 if STEPS else 1):
        col = step * STEP + lane
        inside = every if EVEN else col < width
        x = tl.load(x_ptr + row * stride * UNIT + col, mask=inside, other=0.0, eviction_policy="evict_last")
        x = x.to(ARITHMETIC)
        if MEAN:  # a lane has few numbers, and the first is one of them: their variance loses no digits
            x = tl.where(inside, x - first, 0.0)
            apart += x
        squares += x * x
    count = width.to(ARITHMETIC)
    if MEAN:
        of_lane = tl.zeros((1, STEP), ARITHMETIC) + steps
        if not EVEN:
            of_lane -= (lane >= width - (steps - 1) * STEP).to(ARITHMETIC)
        mean = apart / tl.maximum(of_lane, 1.0)
        centre, variance = _moments(first + mean, squares - mean * apart, of_lane, count, AT_ONCE)
    else:
        centre, variance = 0.0, tl.sum(squares, axis=1)[:, None] / count
    rstd = 1 / tl.sqrt(variance + EPS)
    for step in range(steps):
        col = (steps - 1 - step) * STEP + lane  # what was read last is still in the cache
        inside = tl.full((1, STEP), True, tl.int1) if EVEN else col < width
        x = tl.load(x_ptr + row * stride * UNIT + col, mask=inside, other=0.0, eviction_policy="evict_first")
        x = x.to(ARITHMETIC)
        w = tl.load(w_ptr + col, mask=inside, other=0.0, eviction_policy="evict_last").to(ARITHMETIC)
        y = (x - centre) * rstd * w
        if MEAN:
            y += tl.load(b_ptr + col, mask=inside, other=0.0, eviction_policy="evict_last").to(ARITHMETIC)
        tl.store(y_ptr + row * width + col, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")
    if SAVE:
        here = row + tl.zeros((1, 1), tl.int64)
        tl.store(rstd_ptr + here, rstd)
        if MEAN:
            tl.store(mean_ptr + here, centre)


@triton.jit
def _backward_rows(
    x_ptr, w_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, sums_ptr, x_stride, dy_stride, rows, cols,
    MEAN: tl.constexpr, SUMS: tl.constexpr, ARITHMETIC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    UNIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    width = tl.zeros((), tl.int32) + cols * UNIT
    count = width.to(ARITHMETIC)
    col = tl.arange(0, BLOCK)[None, :]
    w = tl.load(w_ptr + col, mask=col < width, other=0.0).to(ARITHMETIC)
    dw = tl.zeros((ROWS, BLOCK), ARITHMETIC)
    db = tl.zeros((ROWS, BLOCK), ARITHMETIC)
    tiles = (rows - 1) // ROWS + 1  # tl.cdiv would overflow just below 2**31 rows
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        top = (tl.zeros((), tl.int64) + tile) * ROWS
        row = (top + tl.arange(0, ROWS))[:, None]
        inside = (row < rows) & (col < width)
        x = tl.load(x_ptr + row * x_stride * UNIT + col, mask=inside, other=0.0).to(ARITHMETIC)
        dy = tl.load(dy_ptr + row * dy_stride * UNIT + col, mask=inside, other=0.0).to(ARITHMETIC)
        rstd = _of_rows(rstd_ptr, 1, top, rows, ROWS, 1)
        if MEAN:
            x = tl.where(inside, x - _of_rows(mean_ptr, 1, top, rows, ROWS, 1), 0.0)
        x *= rstd
        g = dy * w
        dx = g - x * (tl.sum(g * x, axis=1)[:, None] / count)
        if MEAN:
            dx -= tl.sum(g, axis=1)[:, None] / count
        tl.store(dx_ptr + row * width + col, (dx * rstd).to(dx_ptr.dtype.element_ty), mask=inside)
        if SUMS:
            dw += dy * x
            if MEAN:
                db += dy
    if SUMS:
        here = sums_ptr + tl.program_id(0).to(tl.int64) * width + tl.arange(0, BLOCK)
        tl.store(here, tl.sum(dw, axis=0), mask=tl.arange(0, BLOCK) < width)
        if MEAN:
            here += tl.num_programs(0).to(tl.int64) * width
            tl.store(here, tl.sum(db, axis=0), mask=tl.arange(0, BLOCK) < width)


@triton.jit
def _backward_long(
    x_ptr, w_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, x_stride, dy_stride, cols,
    MEAN: tl.constexpr, ARITHMETIC: tl.constexpr, STEP: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    width = (tl.zeros((), tl.int64) + cols) * UNIT
    lane = tl.arange(0, STEP)
    steps = tl.cdiv(width, STEP)
    rstd = tl.load(rstd_ptr + row)
    mean = tl.load(mean_ptr + row) if MEAN else 0.0
    along = tl.zeros((STEP,), ARITHMETIC)
    total = tl.zeros((STEP,), ARITHMETIC)
    for step in range(steps):
        col = step * STEP + lane
        x = tl.load(x_ptr + row * x_stride * UNIT + col, mask=col < width, other=0.0, eviction_policy="evict_last")
        dy = tl.load(dy_ptr + row * dy_stride * UNIT + col, mask=col < width, other=0.0, eviction_policy="evict_last")
        g = dy.to(ARITHMETIC) * tl.load(w_ptr + col, mask=col < width, other=0.0).to(ARITHMETIC)
        along += g * ((x.to(ARITHMETIC) - mean) * rstd)
        total += g
    count = width.to(ARITHMETIC)
    share = tl.sum(along, axis=0) / count
    offset = tl.sum(total, axis=0) / count if MEAN else 0.0
    for step in range(steps):
        col = (steps - 1 - step) * STEP + lane  # what was read last is still in the cache
        x = tl.load(x_ptr + row * x_stride * UNIT + col, mask=col < width, other=0.0)
        dy = tl.load(dy_ptr + row * dy_stride * UNIT + col, mask=col < width, other=0.0)
        g = dy.to(ARITHMETIC) * tl.load(w_ptr + col, mask=col < width, other=0.0).to(ARITHMETIC)
        dx = (g - (x.to(ARITHMETIC) - mean) * rstd * share - offset) * rstd
        tl.store(dx_ptr + row * width + col, dx.to(dx_ptr.dtype.element_ty), mask=col < width)


@triton.jit
def _sum_columns(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, sums_ptr, x_stride, dy_stride, rows, cols, each,
    MEAN: tl.constexpr, ARITHMETIC: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    # A program sums ``each`` rows of COLS columns, a multiple of ROWS but for the last ones.
    width = (tl.zeros((), tl.int64) + cols) * UNIT
    col = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    begin = tl.program_id(1).to(tl.int64) * each
    dw = tl.zeros((ROWS, COLS), ARITHMETIC)
    db = tl.zeros((ROWS, COLS), ARITHMETIC)
    for start in range(begin, tl.minimum(begin + each, rows), ROWS):
        row = (start + tl.arange(0, ROWS).to(tl.int64))[:, None]
        inside = (row < rows) & (col < width)[None, :]
        x = tl.load(x_ptr + row * x_stride * UNIT + col[None, :], mask=inside, other=0.0).to(ARITHMETIC)
        dy = tl.load(dy_ptr + row * dy_stride * UNIT + col[None, :], mask=inside, other=0.0).to(ARITHMETIC)
        if MEAN:
            x -= _of_rows(mean_ptr, 1, start, rows, ROWS, 1)
            db += dy
        dw += dy * (x * _of_rows(rstd_ptr, 1, start, rows, ROWS, 1))
    here = sums_ptr + tl.program_id(1).to(tl.int64) * width + col
    tl.store(here, tl.sum(dw, axis=0), mask=col < width)
    if MEAN:
        tl.store(here + tl.num_programs(1).to(tl.int64) * width, tl.sum(db, axis=0), mask=col < width)


@triton.jit
def _add_sums(sums_ptr, dw_ptr, db_ptr, parts, cols, MEAN: tl.constexpr, PARTS: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    part = tl.arange(0, PARTS).to(tl.int64)[:, None]
    dw = tl.zeros((PARTS, COLS), sums_ptr.dtype.element_ty)
    db = tl.zeros((PARTS, COLS), sums_ptr.dtype.element_ty)
    for start in range(0, parts, PARTS):
        inside = (start + part < parts) & (col < cols)[None, :]
        at = sums_ptr + (start + part) * cols + col[None, :]
        dw += tl.load(at, mask=inside, other=0.0)
        if MEAN:
            db += tl.load(at + (tl.zeros((), tl.int64) + parts) * cols, mask=inside, other=0.0)
    tl.store(dw_ptr + col, tl.sum(dw, axis=0).to(dw_ptr.dtype.element_ty), mask=col < cols)
    if MEAN:
        tl.store(db_ptr + col, tl.sum(db, axis=0).to(db_ptr.dtype.element_ty), mask=col < cols)


def normalize(x: Tensor, w: Tensor, b: Tensor | None, eps: float, asked: Asked = (None, None)) -> Tensor:
    """Return LayerNorm of each row of ``x`` [..., cols], or RMSNorm if there is no ``b``. ``y`` is contiguous.

    An ``x`` whose rows are not contiguous is copied first. The result can be differentiated once.

    Args:
        x: float16, bfloat16, float32 or float64; 16 bits are computed in float32.
        w: weight [cols], of the dtype of ``x``.
        b: bias [cols], likewise.
        eps: is added to the variance, or to the mean of the squares.
        asked: rows of a program of the forward and its warps.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``w`` or ``b`` is not floating, on another device, or not as long as a row of ``x``.

    """
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad or (b is not None and b.requires_grad)):
        return apply(_Differentiable, x, w, b, eps, asked)
    y: Tensor = _forward(x, w, b, eps, asked, False)[0]
    return y


@planned
def _forward(
    x: Tensor, w: Tensor, b: Tensor | None, eps: float, asked: Asked, save: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return y, and, to ``save``, the mean of each row, if there is a ``b``, and one over its standard deviation."""
    require_gpu(x)
    require_floats(x)
    for vector in (w,) if b is None else (w, b):
        if not x.dim() or vector.shape != x.shape[-1:] or vector.device != x.device or not vector.is_floating_point():
            given = f"{vector.dtype} {[*vector.shape]} on {vector.device}, x {[*x.shape]} on {x.device}"
            raise ValueError(
                f"weight and bias are floating vectors as long as a row of x, on its device; this is {given}"
            )
    y = each_time(torch.empty, *x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y, None, None
    flat, w = _flat(x), w.contiguous()
    rows, cols = flat.shape
    kind = torch.promote_types(x.dtype, torch.float32)
    rstd = each_time(torch.empty, rows, dtype=kind, device=x.device) if save else None
    mean = each_time(torch.empty, rows, dtype=kind, device=x.device) if save and b is not None else None
    unit = _unit(cols, flat)
    tensors = (flat, w, w if b is None else b.contiguous(), y, mean if mean is not None else w, rstd if save else w)
    constants = {"EPS": eps, "MEAN": b is not None, "SAVE": save, "ARITHMETIC": arithmetic(x), "UNIT": unit}
    size, block = x.element_size(), triton.next_power_of_2(cols)
    in_steps = _steps(cols, size, b is not None)
    if in_steps is not None:
        step, steps, warps = in_steps
        even = cols % step == 0
        repeatable(_forward_long)[(rows,)](
            *tensors, flat.stride(0) // unit, cols // unit, **constants, STEP=step, STEPS=steps,
            EVEN=even, AT_ONCE=even and x.is_cuda, num_warps=asked[1] or warps,
        )  # fmt: skip
        return y, mean, rstd
    together, warps, again = _forward_plan(block, rows, size, b is not None, multiprocessors(x))
    together, warps = asked[0] or together, asked[1] or warps
    even = cols == block and rows % together == 0
    repeatable(_forward_rows)[(triton.cdiv(rows, together),)](
        *tensors, flat.stride(0) // unit, rows, cols // unit, **constants,
        ROWS=together, BLOCK=block, AGAIN=again, HINT="evict_last" if again else "",
        EVEN=even, AT_ONCE=even and x.is_cuda, num_warps=warps,
    )  # fmt: skip
    return y, mean, rstd


@planned
def _backward(
    x: Tensor, w: Tensor, mean: Tensor | None, rstd: Tensor, dy: Tensor, of_weights: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of x, and, if ``of_weights``, of weight and, if there is a ``mean``, of bias."""
    dx = each_time(torch.empty, *x.shape, dtype=x.dtype, device=x.device)
    flat, dy, w = _flat(x), _flat(dy), w.contiguous()
    rows, cols = flat.shape
    block, size, mean_too = triton.next_power_of_2(cols), x.element_size(), mean is not None
    unit, processors = _unit(cols, flat, dy), multiprocessors(x)
    together, warps, programs, stages = _backward_plan(block, size, mean_too)
    held = block <= HELD_BACKWARD[size]
    fused = of_weights and held and block <= HELD_SUMS[size, mean_too]
    turns = min(triton.cdiv(rows, together), processors * programs)
    parts = turns
    if of_weights and not fused:
        each = triton.cdiv(rows, triton.cdiv(PROGRAMS * processors, triton.cdiv(cols, COLUMNS)))
        each = triton.cdiv(each, COLUMN_ROWS) * COLUMN_ROWS
        parts = triton.cdiv(rows, each)
    dw = db = sums = None
    if of_weights:
        dw = each_time(torch.empty, cols, dtype=w.dtype, device=x.device)
        db = each_time(torch.empty, cols, dtype=w.dtype, device=x.device) if mean_too else None
        sums = each_time(torch.empty, parts * cols * (2 if mean_too else 1), dtype=rstd.dtype, device=x.device)
    constants = {"MEAN": mean_too, "ARITHMETIC": arithmetic(x), "UNIT": unit}
    strides = flat.stride(0) // unit, dy.stride(0) // unit
    of_rows = (rstd if mean is None else mean), rstd
    if held:
        repeatable(_backward_rows)[(turns,)](
            flat, w, dy, *of_rows, dx, rstd if sums is None else sums, *strides, rows, cols // unit, **constants,
            SUMS=fused, ROWS=together, BLOCK=block, STAGES=stages, num_warps=warps,
        )  # fmt: skip
    else:
        repeatable(_backward_long)[(rows,)](
            flat, w, dy, *of_rows, dx, *strides, cols // unit, **constants, STEP=STEP_BACKWARD, num_warps=8
        )
    if of_weights and not fused:
        repeatable(_sum_columns)[(triton.cdiv(cols, COLUMNS), parts)](
            flat, dy, *of_rows, sums, *strides, rows, cols // unit, each, **constants,
            ROWS=COLUMN_ROWS, COLS=COLUMNS, num_warps=8,
        )  # fmt: skip
    if of_weights:
        repeatable(_add_sums)[(triton.cdiv(cols, ADDED),)](
            sums, dw, dw if db is None else db, parts, cols, MEAN=mean_too, PARTS=PARTS, COLS=ADDED
        )
    return dx, dw, db


class _Differentiable(torch.autograd.Function):
    """``normalize`` for autograd, which saves x, weight, bias and two numbers of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, eps: float, asked: Asked) -> Tensor:
        y, mean, rstd = _forward(x, w, b, eps, asked, True)
        ctx.save_for_backward(x, w, b, mean, rstd)  # b as ``no_second_derivative`` asks
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b, mean, rstd = saved
        if x.numel() == 0:
            return torch.empty_like(x), torch.zeros_like(w), None if b is None else torch.zeros_like(b), None, None
        return *_backward(x, w, mean, rstd, dy, any(ctx.needs_input_grad[1:3])), None, None


def _flat(x: Tensor) -> Tensor:
    """Return ``x`` as a matrix of contiguous rows, copied if it must be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _unit(cols: int, *tensors: Tensor) -> int:
    """Return how many elements at once divide the columns, and the strides between the rows of ``tensors``."""
    sizes = [cols, *(tensor.stride(0) for tensor in tensors if tensor.shape[0] > 1)]
    return next(
        unit
        for unit in (8, 4, 2, 1)
        if unit * tensors[0].element_size() <= VECTOR and not any(size % unit for size in sizes)
    )


def _steps(cols: int, size: int, mean: bool) -> tuple[int, int, int] | None:
    """Return elements of a step, how many steps take a row, 0 for many, and warps. None: the row is held at once."""
    block, part = triton.next_power_of_2(cols), cols & -cols
    if mean and part < cols <= FEW * part and part * size >= 32 * VECTOR:
        step = part  # the largest power of two that divides the columns: no step is partly outside
    elif cols > HELD or (not mean and HELD // 2 < cols <= HELD * 3 // 4):
        step = block // (2 if cols == block else 4)
    else:
        return None
    step = min(step, STEP // size)
    steps = triton.cdiv(cols, step)
    if steps > FEW:
        step, steps = LONG_STEP // size, 0
    return step, steps, min(WARPS, max(1, step * size // (32 * VECTOR)))


def _forward_plan(block: int, rows: int, size: int, mean: bool, processors: int) -> tuple[int, int, bool]:
    """Return rows and warps of a program, and whether it reads them again, where ``size`` are bytes of an element."""
    together = max(1, TILE // block)
    while together > 1 and triton.cdiv(rows, together) < processors:
        together //= 2
    usual = min(8, max(1, together * block // WARP_ELEMENTS)), False
    return together, *(FORWARD.get((size, block), usual) if mean else usual)


def _backward_plan(block: int, size: int, mean: bool) -> tuple[int, int, int, int]:
    """Return rows and warps of a program, programs of a multiprocessor, and rows on their way."""
    together = max(1, TILE // block)
    warps = min(16 if size < 4 or block < 16_384 else 32, max(1, together * block // BACKWARD_WARP_ELEMENTS))
    return together, warps, max(1, 16 // warps), 3 if size == 2 else 1
