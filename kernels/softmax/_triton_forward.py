"""Triton kernels of the forward, and what those of the backward share. ``triton.py`` describes them."""

from __future__ import annotations

import triton
import triton.language as tl

from ..row_vectors import edges, finite, first_vector


@triton.jit
def _load(at, inside, other: tl.constexpr, MASKED: tl.constexpr, EVICTION: tl.constexpr):
    return tl.load(at, mask=inside if MASKED else None, other=other if MASKED else None, eviction_policy=EVICTION)


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
    first, head, whole = first_vector(row, x_stride, cols, UNIT, EDGES)
    y_first, _, _ = first_vector(row, cols, cols, UNIT, EDGES)
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
        edge, inside = edges(head, whole, cols, UNIT)
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
    first, head, whole = first_vector(row, x_stride, cols, UNIT, EDGES)
    y_first, _, _ = first_vector(row, cols, cols, UNIT, EDGES)
    begin = place * steps
    end = tl.minimum(begin + steps, tl.cdiv(whole, STEP))
    vector = tl.arange(0, STEP // UNIT)[:, None] * UNIT
    element = tl.arange(0, UNIT)[None, :]
    if EDGES:
        edge, inside = edges(head, whole, cols, UNIT)
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
            base = finite(larger)
            total = total * tl.exp(largest - base) + tl.sum(tl.exp(x - base[:, None]), axis=1)
            largest = larger
        row_max = tl.max(largest, axis=0)
        if EDGES:
            row_max = tl.maximum(row_max, tl.max(x_edge, axis=0))
        base = finite(row_max)
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
            row_sum = tl.sum(total * tl.exp(largest - finite(row_max)), axis=0)
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
                turn, x_ptr, y_ptr, runs_ptr, x_stride, items, cols, slices, steps,
                ARITHMETIC, STEP, UNIT, EDGES, LAUNCH, SLICES,
            )  # fmt: skip
    else:
        _softmax_item(
            tl.program_id(0), x_ptr, y_ptr, runs_ptr, x_stride, items, cols, slices, steps,
            ARITHMETIC, STEP, UNIT, EDGES, LAUNCH, SLICES,
        )  # fmt: skip
