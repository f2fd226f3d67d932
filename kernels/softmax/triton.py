"""Softmax in Triton. Rows that fit into registers are read once; longer rows are read twice, with an online sum.

The online sum keeps the largest x so far and the sum relative to it, and rescales the sum when a larger x is read
(Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3). Each lane keeps its own pair until the end of the row, so
the loop contains no reduction across lanes. A long row belongs to one program, so that the second read comes from the
cache; where there are too few rows to occupy the GPU, it is divided into slices, in two launches.

Rows are loaded and stored in vectors of 16 bytes wherever their lengths allow it. A row whose length is not a multiple
of 16 bytes begins and ends inside a vector: what lies before the first whole vector and after the last one, its edges,
is loaded element by element.

Backward computes dx = y (dy - sum y dy) from y and dy in the same ways; 16-bit rows stay packed until they are used.
Eviction hints tell the cache which data is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..second_derivative import no_second_derivative
from ..triton_device import l2_bytes, multiprocessors, on_device_of, require_floats, require_gpu

VECTOR = 16  # bytes

# The longest row that a program holds: 32768 columns of float32, with 32 warps. At twice that, registers spill.
MAX_ROW_BYTES = 32_768 * 4

WARP_BYTES = 4096  # bytes of a row for a warp, in the arithmetic type: about 32 registers of a thread
PROGRAM_BYTES = 2048  # the least bytes of x for a program: one warp takes several short rows
MOST_STEPS = 8  # loads of a row, or slightly fewer: the last one is partly empty, and each is code of its own

# How often a row is read, by bytes of an element and warps; all other rows are read once. A row that is kept from the
# maximum to the division takes so many registers that only half of the threads fit on a multiprocessor. A row that is
# read again, from L1, takes fewer. Three reads, for maximum, sum and y, take half as many at 16384 columns of 16 bits.
# Speed relative to a copy on an H200 with one, two and three reads, in bfloat16: 4096 columns 98, 100, 97 %; 16384: 96,
# 92, 100 %; 32768: 77, 70, 97 %. In float32, 16384: 98, 101, 101 %. 8192 columns, not measured, have the value of 4096.
READS = {(2, 4): 2, (2, 8): 2, (2, 16): 3, (2, 32): 3, (4, 16): 2}

LONGEST = 2**31 - 32_768  # columns of a long row; beyond, indices of the last step may need more than 32 bits
# Long rows are read twice. These are the most warps that a program can have, so that few rows are in flight and the
# cache still holds what was read first. Backward of bfloat16, 16384 columns, on an H200: 359 us; with 16 warps and the
# same step 378 us, with half the step 406; with both rows held in registers 364. In float64, 32 warps spill. The second
# read of a slice is in another launch.
LONG_WARPS = 32
SLICE_WARPS = 8
THREAD_BYTES = 32  # bytes that a thread reads in a step of the loop; twice that if no other program reads meanwhile
SLICE_STEPS = 16  # the most steps of a slice: slices of different programs then end at about the same time
SLICE_PROGRAMS = 8  # programs of a multiprocessor, at least, if the rows are long enough
MOST_SLICES = 512  # of a row: each program of the second launch merges their results

# For the choice between one launch and two. The cache holds what was read last, about half of its bytes, since the
# other half holds what is written. A multiprocessor alone is 1.5 times as fast as one of many. A second launch
# costs as much as copying 8 MB, about 2 us.
ALONE = 1.5
LAUNCH_BYTES = 8 << 20

# Backward, where a row is a pair of rows, of y and dy.
HELD = {2: 8_192, 4: 16_384, 8: 4_096}  # columns of the longest row that a program holds, by bytes of an element
PAIR_TILE = 4096  # the least elements of a program: it takes several short rows
PAIR_WARP_BYTES = 4096  # bytes of each tensor for a warp, in the arithmetic type: 64 registers of a thread for both


@triton.jit
def _first_vector(row, stride, cols, UNIT: tl.constexpr, EDGES: tl.constexpr):
    """Return where the first whole vector of a row begins, the elements before it, and those in whole vectors.

    Without edges, ``stride`` and ``cols`` count units of UNIT elements. That shows the compiler how many elements it
    may load at once; for an argument it only knows whether it is a multiple of 16.
    """
    first = row * stride * UNIT
    head = 0
    whole = cols * UNIT
    if EDGES:
        vector = (row * stride + (UNIT - 1)) // UNIT
        first = vector * UNIT
        head = (first - row * stride).to(cols.dtype)
        whole = (cols - head) // UNIT * UNIT
    return first, head, whole


@triton.jit
def _edges(head, whole, cols, UNIT: tl.constexpr):
    """Return the columns outside of whole vectors, counted from the first vector, and which are in the row."""
    lane = tl.arange(0, 2 * UNIT)
    col = tl.where(lane < UNIT, lane - UNIT, lane - UNIT + whole)
    return col, (col >= -head) & (col < cols - head)


@triton.jit
def _load(at, inside, other: tl.constexpr, MASKED: tl.constexpr, EVICTION: tl.constexpr):
    return tl.load(at, mask=inside if MASKED else None, other=other if MASKED else None, eviction_policy=EVICTION)


@triton.jit
def _finite(largest):
    """Return what is subtracted from x: ``largest``, but 0 where all x are -inf, since -inf - -inf would be NaN."""
    return tl.where(largest == -float("inf"), 0.0, largest)


@triton.jit
def _softmax_rows(
    x_ptr,
    y_ptr,
    x_stride,
    rows,
    cols,
    ARITHMETIC: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
    SURE: tl.constexpr,
    READS: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
):
    # A row is STEPS loads of STEP columns, the first SURE of which are inside any row. With edges there is one row, and
    # its maximum and sum are numbers: tiles would be converted to the layout of the edges. Rows are int64: int32
    # overflows at 2**31 elements.
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, STEP)
    if ROWS > 1:
        row = (row * ROWS + tl.arange(0, ROWS))[:, None]
        col = col[None, :]
    first, head, whole = _first_vector(row, x_stride, cols, UNIT, EDGES)
    y_first, _, _ = _first_vector(row, cols, cols, UNIT, EDGES)
    if ROWS > 1:
        whole = tl.where(row < rows, whole, 0)
    # Padding is -inf, which changes neither the maximum nor the sum.
    padding: tl.constexpr = -float("inf")
    # Each read has another eviction hint, or the compiler would merge them into one.
    keep: tl.constexpr = "" if READS == 1 else "evict_last"
    x = ()
    for i in tl.static_range(STEPS):
        at = i * STEP + col
        x += (_load(x_ptr + first + at, at < whole, padding, i >= SURE, keep).to(ARITHMETIC),)  # type: ignore[assignment]
    lane_max = x[0]  # type: ignore[misc]
    for i in tl.static_range(1, STEPS):
        lane_max = tl.maximum(lane_max, x[i])
    largest = tl.max(lane_max, axis=1)[:, None] if ROWS > 1 else tl.max(lane_max, axis=0)
    if EDGES:
        edge, inside = _edges(head, whole, cols, UNIT)
        x_edge = tl.load(x_ptr + first + edge, mask=inside, other=padding).to(ARITHMETIC)
        largest = tl.maximum(largest, tl.max(x_edge, axis=0))
    lane_sum = lane_max  # of the same shape; the first step sets it
    for i in tl.static_range(STEPS):
        at = i * STEP + col
        value = _load(x_ptr + first + at, at < whole, padding, i >= SURE, "").to(ARITHMETIC) if READS == 3 else x[i]
        weight = tl.exp(value - largest)
        lane_sum = weight if i == 0 else lane_sum + weight
    total = tl.sum(lane_sum, axis=1)[:, None] if ROWS > 1 else tl.sum(lane_sum, axis=0)
    if EDGES:
        total += tl.sum(tl.exp(x_edge - largest), axis=0)
    scale = 1 / total
    for i in tl.static_range(STEPS):
        at = i * STEP + col
        if READS > 1:
            value = _load(x_ptr + first + at, at < whole, padding, i >= SURE, "evict_first").to(ARITHMETIC)
        else:
            value = x[i]
        y = (tl.exp(value - largest) * scale).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + y_first + at, y, mask=at < whole if i >= SURE else None)
    if EDGES:
        y = (tl.exp(x_edge - largest) * scale).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + y_first + edge, y, mask=inside)


@triton.jit
def _softmax_item(
    turn,
    x_ptr,
    y_ptr,
    runs_ptr,
    x_stride,
    items,
    cols,
    slices,
    steps,
    ARITHMETIC: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    LAUNCH: tl.constexpr,
    SLICES: tl.constexpr,
):
    # LAUNCH 0: an item is a row. 1: it is a slice of `steps` steps, whose largest x and sum go to `runs`. 2: those of
    # the row are merged, and the slice of y is written.
    item = turn
    if LAUNCH == 2:  # in reverse order, since the cache still holds what was read last
        item = items - 1 - turn
    row = (item // slices).to(tl.int64)
    place = item % slices
    first, head, whole = _first_vector(row, x_stride, cols, UNIT, EDGES)
    y_first, _, _ = _first_vector(row, cols, cols, UNIT, EDGES)
    begin = place * steps
    end = tl.minimum(begin + steps, tl.cdiv(whole, STEP))
    vector = tl.arange(0, STEP // UNIT)[:, None] * UNIT
    element = tl.arange(0, UNIT)[None, :]
    if EDGES:
        edge, inside = _edges(head, whole, cols, UNIT)
        inside = inside & (place == 0)
        x_edge = tl.load(x_ptr + first + edge, mask=inside, other=-float("inf")).to(ARITHMETIC)

    if LAUNCH < 2:
        # A pair for each vector: the number of exponentials is that of the elements, and one more for a vector.
        largest = tl.full((STEP // UNIT,), -float("inf"), ARITHMETIC)
        total = tl.zeros((STEP // UNIT,), ARITHMETIC)
        for step in range(begin, end):
            at = step * STEP + vector
            x = tl.load(
                x_ptr + first + (at + element), mask=at < whole, other=-float("inf"), eviction_policy="evict_last"
            ).to(ARITHMETIC)
            larger = tl.maximum(largest, tl.max(x, axis=1))
            base = _finite(larger)
            total = total * tl.exp(largest - base) + tl.sum(tl.exp(x - base[:, None]), axis=1)
            largest = larger
        row_max = tl.max(largest, axis=0)
        if EDGES:
            row_max = tl.maximum(row_max, tl.max(x_edge, axis=0))
        base = _finite(row_max)
        row_sum = tl.sum(total * tl.exp(largest - base), axis=0)
        if EDGES:
            row_sum += tl.sum(tl.exp(x_edge - base), axis=0)
    if LAUNCH == 1:
        tl.store(runs_ptr + item, row_max)
        tl.store(runs_ptr + items + item, row_sum)
    else:
        if LAUNCH == 2:
            lane = tl.arange(0, SLICES)
            run = runs_ptr + row * slices + lane
            largest = tl.load(run, mask=lane < slices, other=-float("inf"))
            total = tl.load(run + items, mask=lane < slices, other=0.0)
            row_max = tl.max(largest, axis=0)
            row_sum = tl.sum(total * tl.exp(largest - _finite(row_max)), axis=0)
        scale = 1 / row_sum
        for step in range(begin, end):  # in reverse order, as above
            at = (end - 1 - (step - begin)) * STEP + vector
            x = tl.load(
                x_ptr + first + (at + element), mask=at < whole, other=-float("inf"), eviction_policy="evict_first"
            ).to(ARITHMETIC)
            y = (tl.exp(x - row_max) * scale).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + y_first + (at + element), y, mask=at < whole)
        if EDGES:
            y = (tl.exp(x_edge - row_max) * scale).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + y_first + edge, y, mask=inside)


@triton.jit
def _softmax_long(
    x_ptr,
    y_ptr,
    runs_ptr,
    x_stride,
    items,
    cols,
    slices,
    steps,
    ARITHMETIC: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    LONG: tl.constexpr,
    LAUNCH: tl.constexpr,
    SLICES: tl.constexpr,
    LOOP: tl.constexpr,
):
    if LONG:
        cols = cols.to(tl.int64)
    if LOOP:
        for turn in range(tl.program_id(0), items, tl.num_programs(0)):
            _softmax_item(
                turn,
                x_ptr,
                y_ptr,
                runs_ptr,
                x_stride,
                items,
                cols,
                slices,
                steps,
                ARITHMETIC,
                STEP,
                UNIT,
                EDGES,
                LAUNCH,
                SLICES,
            )
    else:
        _softmax_item(
            tl.program_id(0),
            x_ptr,
            y_ptr,
            runs_ptr,
            x_stride,
            items,
            cols,
            slices,
            steps,
            ARITHMETIC,
            STEP,
            UNIT,
            EDGES,
            LAUNCH,
            SLICES,
        )


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
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    if ROWS > 1:
        row = (row * ROWS + tl.arange(0, ROWS))[:, None]
        col = col[None, :]
    first, head, whole = _first_vector(row, cols, cols, UNIT, EDGES)
    dy_first, _, _ = _first_vector(row, dy_stride, cols, UNIT, EDGES)
    inside = col < (tl.where(row < rows, whole, 0) if ROWS > 1 else whole)
    y = _load(y_ptr + first + col, inside, 0.0, not WHOLE, "")
    dy = _load(dy_ptr + dy_first + col, inside, 0.0, not WHOLE, "")
    product = y.to(ARITHMETIC) * dy.to(ARITHMETIC)
    row_sum = tl.sum(product, axis=1)[:, None] if ROWS > 1 else tl.sum(product, axis=0)
    if EDGES:
        edge, edge_inside = _edges(head, whole, cols, UNIT)
        y_edge = tl.load(y_ptr + first + edge, mask=edge_inside, other=0.0).to(ARITHMETIC)
        dy_edge = tl.load(dy_ptr + dy_first + edge, mask=edge_inside, other=0.0).to(ARITHMETIC)
        row_sum += tl.sum(y_edge * dy_edge, axis=0)
    if PACKED:  # else the compiler keeps the values converted for the sum until dx, in twice the registers
        y, dy = _keep_packed(y), _keep_packed(dy)
    dx = y.to(ARITHMETIC) * (dy.to(ARITHMETIC) - row_sum)
    tl.store(dx_ptr + first + col, dx.to(dx_ptr.dtype.element_ty), mask=None if WHOLE else inside)
    if EDGES:
        dx_edge = (y_edge * (dy_edge - row_sum)).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + first + edge, dx_edge, mask=edge_inside)


@triton.jit
def _backward_item(
    turn,
    y_ptr,
    dy_ptr,
    dx_ptr,
    runs_ptr,
    dy_stride,
    items,
    cols,
    slices,
    steps,
    ARITHMETIC: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    LAUNCH: tl.constexpr,
    SLICES: tl.constexpr,
):
    # LAUNCH as in _softmax_item. Without masks, where all steps are whole, the loop is unrolled into more registers.
    item = turn
    if LAUNCH == 2:
        item = items - 1 - turn
    row = (item // slices).to(tl.int64)
    place = item % slices
    first, head, whole = _first_vector(row, cols, cols, UNIT, EDGES)
    dy_first, _, _ = _first_vector(row, dy_stride, cols, UNIT, EDGES)
    begin = place * steps
    end = tl.minimum(begin + steps, tl.cdiv(whole, STEP))
    lane = tl.arange(0, STEP)
    if EDGES:
        edge, edge_inside = _edges(head, whole, cols, UNIT)
        edge_inside = edge_inside & (place == 0)
        y_edge = tl.load(y_ptr + first + edge, mask=edge_inside, other=0.0).to(ARITHMETIC)
        dy_edge = tl.load(dy_ptr + dy_first + edge, mask=edge_inside, other=0.0).to(ARITHMETIC)

    if LAUNCH < 2:
        total = tl.zeros((STEP,), ARITHMETIC)
        for step in range(begin, end):
            col = step * STEP + lane
            y = _load(y_ptr + first + col, col < whole, 0.0, True, "evict_last").to(ARITHMETIC)
            dy = _load(dy_ptr + dy_first + col, col < whole, 0.0, True, "evict_last").to(ARITHMETIC)
            total += y * dy
        row_sum = tl.sum(total, axis=0)
        if EDGES:
            row_sum += tl.sum(y_edge * dy_edge, axis=0)
    if LAUNCH == 1:
        tl.store(runs_ptr + item, row_sum)
    else:
        if LAUNCH == 2:
            part = tl.arange(0, SLICES)
            row_sum = tl.sum(tl.load(runs_ptr + row * slices + part, mask=part < slices, other=0.0), axis=0)
        for step in range(begin, end):  # in reverse order, since the cache still holds what was read last
            col = (end - 1 - (step - begin)) * STEP + lane
            y = _load(y_ptr + first + col, col < whole, 0.0, True, "evict_first").to(ARITHMETIC)
            dy = _load(dy_ptr + dy_first + col, col < whole, 0.0, True, "evict_first").to(ARITHMETIC)
            dx = (y * (dy - row_sum)).to(dx_ptr.dtype.element_ty)
            tl.store(dx_ptr + first + col, dx, mask=col < whole)
        if EDGES:
            dx_edge = (y_edge * (dy_edge - row_sum)).to(dx_ptr.dtype.element_ty)
            tl.store(dx_ptr + first + edge, dx_edge, mask=edge_inside)


@triton.jit
def _backward_long(
    y_ptr,
    dy_ptr,
    dx_ptr,
    runs_ptr,
    dy_stride,
    items,
    cols,
    slices,
    steps,
    ARITHMETIC: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    LONG: tl.constexpr,
    LAUNCH: tl.constexpr,
    SLICES: tl.constexpr,
    LOOP: tl.constexpr,
):
    if LONG:
        cols = cols.to(tl.int64)
    if LOOP:
        for turn in range(tl.program_id(0), items, tl.num_programs(0)):
            _backward_item(
                turn,
                y_ptr,
                dy_ptr,
                dx_ptr,
                runs_ptr,
                dy_stride,
                items,
                cols,
                slices,
                steps,
                ARITHMETIC,
                STEP,
                UNIT,
                EDGES,
                LAUNCH,
                SLICES,
            )
    else:
        _backward_item(
            tl.program_id(0),
            y_ptr,
            dy_ptr,
            dx_ptr,
            runs_ptr,
            dy_stride,
            items,
            cols,
            slices,
            steps,
            ARITHMETIC,
            STEP,
            UNIT,
            EDGES,
            LAUNCH,
            SLICES,
        )


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
    flat = _flat(x)
    with on_device_of(x):
        _launch(flat, y, Asked(BLOCK, ROWS, num_warps))
    return y


@dataclass(frozen=True)
class Rows:
    """The tensor [rows, cols] and the GPU that a launch depends on. The stride is in elements."""

    rows: int
    cols: int
    stride: int
    itemsize: int
    multiprocessors: int
    l2: int  # bytes of the cache

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return self.cols * self.itemsize

    @property
    def wide(self) -> int:
        """Bytes of an element in the arithmetic type."""
        return max(4, self.itemsize)


@dataclass(frozen=True)
class Asked:
    """What the caller has chosen: columns that a program holds, its rows and its warps."""

    block: int | None = None
    rows: int | None = None
    warps: int | None = None


@dataclass(frozen=True)
class Access:
    """How rows are loaded: ``unit`` elements at once, and element by element at the edges."""

    unit: int
    edges: bool

    @property
    def scalar(self) -> bool:
        """Whether elements are loaded one by one."""
        return self.unit == 1


def access(x: Rows, together: int) -> Access:
    """Return how ``together`` rows are loaded by a program."""
    vector = VECTOR // x.itemsize
    apart = 0 if x.rows == 1 else x.stride
    unit = next(unit for unit in (8, 4, 2, 1) if unit <= vector and x.cols % unit == apart % unit == 0)
    # Accesses of 8 bytes are as fast as memory; for shorter ones the edges are worth their instructions. The output,
    # whose rows are x.cols apart, must begin at the same place of a vector.
    alike = x.rows == 1 or (x.cols - apart) % vector == 0
    if together == 1 and unit * x.itemsize < 8 and alike and x.cols >= 2 * vector:
        return Access(vector, edges=True)
    return Access(unit, edges=False)


@dataclass(frozen=True)
class Held:
    """A launch of ``_softmax_rows``: rows of a program, columns of a load and loads of a row; ``sure`` are whole."""

    rows: int
    step: int
    steps: int
    sure: int
    warps: int
    reads: int
    access: Access


def held(x: Rows, asked: Asked = Asked()) -> Held:
    """Return the launch for rows that fit into the registers of a program."""
    block = triton.next_power_of_2(x.cols)
    rows = asked.rows or max(1, PROGRAM_BYTES // (block * x.itemsize))
    loads = access(x, rows)
    # The power of 2 of warps whose threads hold 23 to 45 numbers. Each lone element has a mask of its own,
    # which takes as much.
    numbers = WARP_BYTES // (2 * x.wide if loads.scalar else x.wide)
    warps = asked.warps or min(32, max(1, triton.next_power_of_2(rows * x.cols * 7 // (5 * numbers) + 1) // 2))
    # A load of one vector for each thread, or more.
    step = min(block, max(triton.cdiv(32 * warps * loads.unit, rows), block // MOST_STEPS, 2 * loads.unit))
    if x.cols == block:
        step = block  # the same loads, in fewer registers
    whole = (x.cols - loads.unit + 1) if loads.edges else x.cols  # at the least
    sure = whole // step if x.rows % rows == 0 else 0
    # Where a multiprocessor has one program, it has enough registers.
    reads = READS.get((x.itemsize, warps), 1) if x.rows > x.multiprocessors * rows and not loads.scalar else 1
    return Held(rows, step, triton.cdiv(x.cols, step), sure, warps, reads, loads)


@dataclass(frozen=True)
class Long:
    """One launch of a kernel for long rows, by ``programs`` programs, or two, if a row has more than one slice."""

    slices: int  # of a row
    steps: int  # of a slice
    step: int  # columns
    warps: int
    programs: int  # fewer than rows: each takes rows in turn, so that few are in flight
    access: Access


def long(x: Rows, tensors: int, asked: Asked = Asked()) -> Long:
    """Return the launch for rows that are too long for registers, of which ``tensors`` are read and one is written."""
    read, cached = tensors * x.bytes, x.l2 / 2
    # What the second read finds in the cache is what was read last.
    together = min(x.rows, x.multiprocessors)
    missed, missed_apart = (max(0.0, 1 - cached / (rows * read)) for rows in (together, x.rows))
    one = max(
        x.rows * (read * (1 + missed) + x.bytes),
        triton.cdiv(x.rows, x.multiprocessors) * (2 * read + x.bytes) * x.multiprocessors / ALONE,
    )
    two = x.rows * (read * (1 + missed_apart) + x.bytes) + LAUNCH_BYTES
    apart = two < one
    # A second program of a multiprocessor computes while the first one waits, if the cache has room for its row.
    pair = 2 * x.multiprocessors * read <= cached
    warps = asked.warps or (SLICE_WARPS if apart else LONG_WARPS if x.itemsize < 8 else LONG_WARPS // 2)
    thread = THREAD_BYTES if apart or pair or tensors == 2 or x.itemsize == 8 else 2 * THREAD_BYTES
    step = asked.block or 32 * warps * thread // (tensors * x.itemsize)
    steps = int(triton.cdiv(x.cols, step))
    if not apart:
        return Long(1, steps, step, warps, x.rows if pair else together, access(x, 1))
    slice_steps = min(SLICE_STEPS, triton.cdiv(steps, triton.cdiv(SLICE_PROGRAMS * x.multiprocessors, x.rows)))
    slice_steps = max(slice_steps, triton.cdiv(steps, MOST_SLICES))
    slices = int(triton.cdiv(steps, slice_steps))
    return Long(slices, int(slice_steps), step, warps, x.rows * slices, access(x, 1))


def _flat(x: Tensor) -> Tensor:
    """Return ``x`` as a matrix of contiguous rows, copied if it must be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _rows_of(x: Tensor) -> Rows:
    rows, cols = x.shape
    return Rows(rows, cols, x.stride(0), x.element_size(), multiprocessors(x), l2_bytes(x))


def _arithmetic(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _launch(x: Tensor, y: Tensor, asked: Asked) -> None:
    given = _rows_of(x)
    rows, cols = given.rows, given.cols
    plan = _plan(given, asked)
    unit = 1 if plan.access.edges else plan.access.unit
    if isinstance(plan, Long):
        runs = x if plan.slices == 1 else _runs(x, 2 * plan.programs)
        for launch in (0,) if plan.slices == 1 else (1, 2):
            _softmax_long[(plan.programs,)](
                x,
                y,
                runs,
                x.stride(0) // unit,
                rows * plan.slices,
                cols // unit,
                plan.slices,
                plan.steps,
                ARITHMETIC=_arithmetic(x),
                STEP=plan.step,
                UNIT=plan.access.unit,
                EDGES=plan.access.edges,
                LONG=cols > LONGEST,
                LAUNCH=launch,
                SLICES=triton.next_power_of_2(plan.slices),
                LOOP=plan.programs < rows * plan.slices,
                num_warps=plan.warps,
            )
        return
    _softmax_rows[(triton.cdiv(rows, plan.rows),)](
        x,
        y,
        x.stride(0) // unit,
        rows,
        cols // unit,
        ARITHMETIC=_arithmetic(x),
        ROWS=plan.rows,
        STEP=plan.step,
        STEPS=plan.steps,
        SURE=plan.sure,
        READS=plan.reads,
        UNIT=plan.access.unit,
        EDGES=plan.access.edges,
        num_warps=plan.warps,
    )


def _plan(x: Rows, asked: Asked) -> Held | Long:
    """Return the launch of the forward. torch.compile would warn about the cache, and needs none."""
    return _chosen(x, asked) if torch.compiler.is_compiling() else _cached(x, asked)


def _chosen(x: Rows, asked: Asked) -> Held | Long:
    longest = asked.block or MAX_ROW_BYTES // x.wide
    return long(x, 1, asked) if triton.next_power_of_2(x.cols) > longest else held(x, asked)


_cached = lru_cache(maxsize=1024)(_chosen)


def _runs(x: Tensor, count: int) -> Tensor:
    """Return memory for ``count`` results of slices, in the arithmetic type."""
    return torch.empty(count, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)


def _backward(y: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of ``x``, given the contiguous ``y`` and the gradient ``dy`` of ``y``."""
    dx = torch.empty_like(y)
    if y.numel() == 0:
        return dx
    flat = _flat(dy)
    with on_device_of(y):
        _launch_backward(y, flat, dx)
    return dx


def _launch_backward(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    given = _rows_of(dy)
    rows, cols = given.rows, given.cols
    block = triton.next_power_of_2(cols)
    if block > HELD[given.itemsize]:
        plan = long(given, 2)
        unit = 1 if plan.access.edges else plan.access.unit
        runs = y if plan.slices == 1 else _runs(y, plan.programs)
        for launch in (0,) if plan.slices == 1 else (1, 2):
            _backward_long[(plan.programs,)](
                y,
                dy,
                dx,
                runs,
                dy.stride(0) // unit,
                rows * plan.slices,
                cols // unit,
                plan.slices,
                plan.steps,
                ARITHMETIC=_arithmetic(y),
                STEP=plan.step,
                UNIT=plan.access.unit,
                EDGES=plan.access.edges,
                LONG=cols > LONGEST,
                LAUNCH=launch,
                SLICES=triton.next_power_of_2(plan.slices),
                LOOP=plan.programs < rows * plan.slices,
                num_warps=plan.warps,
            )
        return
    together = max(1, PAIR_TILE // block)
    if access(given, 1).edges and given.bytes > PROGRAM_BYTES // 2:
        together = 1
    loads = access(given, together)
    unit = 1 if loads.edges else loads.unit
    _backward_rows[(triton.cdiv(rows, together),)](
        y,
        dy,
        dx,
        dy.stride(0) // unit,
        rows,
        cols // unit,
        ARITHMETIC=_arithmetic(y),
        ROWS=together,
        BLOCK=block,
        WHOLE=cols == block and rows % together == 0,
        PACKED=y.is_cuda and y.element_size() == 2,  # the interpreter has no assembly
        UNIT=loads.unit,
        EDGES=loads.edges,
        num_warps=backward_warps(block * together, given.wide),
    )


def backward_warps(elements: int, itemsize: int) -> int:
    """Return the warps whose registers hold two tiles of ``elements`` elements of ``itemsize`` bytes."""
    return max(1, elements * itemsize // PAIR_WARP_BYTES)


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
