"""Triton kernels of the backward: dx = y (dy - sum y dy). ``triton.py`` describes them."""

from __future__ import annotations

import triton
import triton.language as tl

from ..row_vectors import edges, first_vector, keep_packed
from ._triton_forward import _load


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
    first, head, whole = first_vector(row, cols, cols, UNIT, EDGES)
    dy_first, _, _ = first_vector(row, dy_stride, cols, UNIT, EDGES)
    inside = col < (tl.where(row < rows, whole, 0) if ROWS > 1 else whole)
    y = _load(y_ptr + first + col, inside, 0.0, not WHOLE, "")
    dy = _load(dy_ptr + dy_first + col, inside, 0.0, not WHOLE, "")
    product = y.to(ARITHMETIC) * dy.to(ARITHMETIC)
    row_sum = tl.sum(product, axis=1)[:, None] if ROWS > 1 else tl.sum(product, axis=0)
    if EDGES:
        edge, edge_inside = edges(head, whole, cols, UNIT)
        y_edge = tl.load(y_ptr + first + edge, mask=edge_inside, other=0.0).to(ARITHMETIC)
        dy_edge = tl.load(dy_ptr + dy_first + edge, mask=edge_inside, other=0.0).to(ARITHMETIC)
        row_sum += tl.sum(y_edge * dy_edge, axis=0)
    dx = keep_packed(y, PACKED).to(ARITHMETIC) * (keep_packed(dy, PACKED).to(ARITHMETIC) - row_sum)
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
    first, head, whole = first_vector(row, cols, cols, UNIT, EDGES)
    dy_first, _, _ = first_vector(row, dy_stride, cols, UNIT, EDGES)
    begin = place * steps
    end = tl.minimum(begin + steps, tl.cdiv(whole, STEP))
    lane = tl.arange(0, STEP)
    if EDGES:
        edge, edge_inside = edges(head, whole, cols, UNIT)
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
                turn, y_ptr, dy_ptr, dx_ptr, runs_ptr, dy_stride, items, cols, slices, steps,
                ARITHMETIC, STEP, UNIT, EDGES, LAUNCH, SLICES,
            )  # fmt: skip
    else:
        _backward_item(
            tl.program_id(0), y_ptr, dy_ptr, dx_ptr, runs_ptr, dy_stride, items, cols, slices, steps,
            ARITHMETIC, STEP, UNIT, EDGES, LAUNCH, SLICES,
        )  # fmt: skip
