"""Sum, maximum, place of the maximum and 2-norm of a matrix, or of each of its rows or columns, in one Triton kernel.

A program reduces a tile at a time: the elements of a step for several outputs. Each element of the tile has an
accumulator, so the loop has no reduction across threads, and each thread has several loads of 16 bytes in flight.

If there are few outputs, several programs share each of them. Each of these programs stores its partial result and
counts itself; the last one to arrive combines the partial results, always in the same order, so the result does not
depend on the order of arrival. A second launch would do without the counter, but it takes about 2 us, as long as
reading 8 MB. The last program sets the counter to 0 for the next launch. ``stream_memory`` has the counters.

A maximum is NaN if an element is NaN, and the place is then that of the first NaN, as in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .stream_memory import StreamMemory
from .triton_device import multiprocessors, on_device_of, require_floats, require_gpu

# Elements of a tile, by bytes of an element. With 4 warps each thread has 32 accumulators of 32 bits, or 16 of 64 bits.
TILE = {2: 4096, 4: 4096, 8: 2048}
WARP_ELEMENTS = 1024  # of a tile
LINE_BYTES = 512  # of a row that a tile reads at once where it reduces columns: 16 bytes for each thread of a warp
PROGRAMS = 8  # programs for each multiprocessor, which can hold so many at a time, if outputs are few
WAVES = 8  # times as many programs: from then on each output has one program
LONGEST_STEPS = 16  # steps of a program that shares its output, so that the last ones to run do not run long
COMBINED = 4096  # partial results that the last program combines at once


@triton.jit
def _accumulate(best, place, x, here, OP: tl.constexpr):
    """Return the accumulators after ``x``, whose places are ``here``, a scalar or of the shape of ``x``."""
    if OP == "argmax":
        # The first part is true for a larger x and for NaN. The second keeps the first NaN.
        better = ~(x <= best) & (best == best)
        best = tl.where(better, x, best)
        place = tl.where(better, here, place)
    elif OP == "max":
        best = tl.maximum(best, x, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "norm":
        best += x * x
    else:
        best += x
    return best, place


@triton.jit
def _across(best, place, OP: tl.constexpr):
    """Return value and place of each output, from its accumulators along dimension 1."""
    if OP == "sum" or OP == "norm":  # Triton has no "in" for constants
        value = tl.sum(best, axis=1)
        first = tl.zeros_like(value).to(place.dtype)
    else:
        is_nan = best != best
        value = tl.max(best, axis=1)  # it leaves out NaN
        value = tl.where(tl.max(is_nan.to(tl.int32), axis=1) > 0, float("nan"), value)
        first = tl.min(tl.where((best == value[:, None]) | is_nan, place, 2147483647), axis=1)
    return value, first


@triton.jit
def _write(y_ptr, value, place, inside, OP: tl.constexpr):
    if OP == "argmax":
        tl.store(y_ptr, place, mask=inside)
    elif OP == "norm":
        tl.store(y_ptr, tl.sqrt(value).to(y_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(y_ptr, value.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _reduce(
    x_ptr,
    y_ptr,
    value_ptr,
    place_ptr,
    counter_ptr,
    stride,
    outs,
    count,
    steps,
    segments,
    OP: tl.constexpr,
    INNER: tl.constexpr,
    UNIT: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    ALL_OUTS: tl.constexpr,
    ALL_STEPS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    # If INNER, the elements of an output are neighbours in memory; else the outputs are. ``stride`` is that of the
    # other dimension. It, and the length of the inner dimension, count units of UNIT elements. That shows the compiler
    # how many elements it may load at once. Offsets are int64: int32 overflows at 2**31 elements.
    group = tl.program_id(0).to(tl.int64)
    segment = tl.program_id(1).to(tl.int64)
    lane_out = tl.arange(0, OUTS)
    lane = tl.arange(0, STEP)
    start = segment * steps * STEP
    if INNER:
        outs_left = outs - group * OUTS
        left = (count - segment * steps * (STEP // UNIT)) * UNIT
        jump = tl.full((), STEP, tl.int64)
        at = x_ptr + start + ((group * OUTS + lane_out) * stride * UNIT)[:, None] + lane[None, :]
    else:
        outs_left = (outs - group * (OUTS // UNIT)) * UNIT
        left = count - start
        jump = tl.full((), STEP, tl.int64) * stride * UNIT
        at = x_ptr + start * stride * UNIT + (group * OUTS + lane_out)[:, None]
        at += (lane.to(tl.int64) * stride * UNIT)[None, :]
    least: tl.constexpr = -float("inf") if OP == "max" or OP == "argmax" else 0.0
    inside = None if ALL_OUTS else (lane_out < outs_left)[:, None] & (lane >= 0)[None, :]
    padding = None if ALL_OUTS else least

    best = tl.full((OUTS, STEP), least, ARITHMETIC)
    place = tl.zeros((OUTS, STEP), tl.int32)
    full = tl.minimum(left // STEP, steps).to(tl.int32)
    for step in range(full):
        x = tl.load(at, mask=inside, other=padding).to(ARITHMETIC)
        best, place = _accumulate(best, place, x, step, OP)
        at += jump
    if not ALL_STEPS:  # noqa: SIM102  # the first is known when it is compiled
        if full < steps:
            rest = left - full.to(tl.int64) * STEP
            x = tl.load(at, mask=(lane_out < outs_left)[:, None] & (lane < rest)[None, :], other=least)
            best, place = _accumulate(best, place, x.to(ARITHMETIC), full, OP)
    value, first = _across(best, place * STEP + lane[None, :], OP)
    place_of_first = first.to(tl.int64) + start

    y_ptr += group * OUTS + lane_out
    if TOGETHER == 0:
        _write(y_ptr, value, place_of_first, lane_out < outs_left, OP)
    else:
        mine = (group * segments + segment) * OUTS + lane_out
        tl.store(value_ptr + mine, value)
        if OP == "argmax":
            tl.store(place_ptr + mine, place_of_first)
        tl.debug_barrier()  # all threads have stored before one of them counts
        if tl.atomic_add(counter_ptr + group, 1, sem="acq_rel") == segments - 1:
            # Here the place is the number of a segment: that takes half as many registers as the place in x.
            lane_segment = tl.arange(0, TOGETHER)
            all_best = tl.full((OUTS, TOGETHER), least, ARITHMETIC)
            all_place = tl.zeros((OUTS, TOGETHER), tl.int32)
            for begin in range(0, segments, TOGETHER):
                other = begin + lane_segment
                there = ((group * segments + other) * OUTS)[None, :] + lane_out[:, None]
                known = (other < segments)[None, :] & (lane_out >= 0)[:, None]
                part = tl.load(value_ptr + there, mask=known, other=least, cache_modifier=".cg")
                # The partial results of a norm are sums of squares.
                all_best, all_place = _accumulate(
                    all_best, all_place, part, other[None, :], "sum" if OP == "norm" else OP
                )
            total, first_of_all = _across(all_best, all_place, OP)
            if OP == "argmax":
                there = (group * segments + first_of_all) * OUTS + lane_out
                first_of_all = tl.load(place_ptr + there, cache_modifier=".cg")
            tl.store(counter_ptr + group, 0)
            _write(y_ptr, total, first_of_all, lane_out < outs_left, OP)


@dataclass(frozen=True)
class Plan:
    """How a launch divides ``count`` elements of each of ``outs`` outputs."""

    outs: int  # outputs of a program
    step: int  # elements of each, in a step
    groups: int  # programs side by side
    steps: int  # steps of a program
    segments: int  # programs that share an output


def plan_for(outs: int, count: int, itemsize: int, inner: bool, processors: int) -> Plan:
    """Return the plan. ``inner`` is True if the elements of an output, not the outputs, are neighbours in memory."""
    tile = TILE[itemsize]
    line = 1 if inner else min(triton.next_power_of_2(outs), LINE_BYTES // itemsize)
    step = min(triton.next_power_of_2(count), tile // line)
    together = min(triton.next_power_of_2(outs), tile // step)
    groups, all_steps = triton.cdiv(outs, together), triton.cdiv(count, step)
    wanted, most = PROGRAMS * processors, PROGRAMS * WAVES * processors
    segments = 1
    if groups < most:
        least = max(triton.cdiv(wanted, groups), triton.cdiv(all_steps, LONGEST_STEPS))
        segments = min(all_steps, least, triton.cdiv(most, groups))
    steps = triton.cdiv(all_steps, segments)
    return Plan(together, step, groups, steps, triton.cdiv(all_steps, steps))


def reduce(op: str, x: Tensor, dim: str | int) -> Tensor:
    """Reduce ``x`` [rows, cols] to a number (``dim="all"``), or along dimension 0 or 1. The result is contiguous.

    Args:
        op: "sum", "max", "argmax" or "norm". argmax returns int64, the others the dtype of ``x``.
        x: a matrix. It is copied first if no dimension has the stride 1, or, for "all", if it is not contiguous.
        dim: "all", 0 or 1.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``x`` is no matrix, ``dim`` is none of the three, or there are no elements to compare.

    """
    require_gpu(x)
    require_floats(x)
    if x.dim() != 2 or dim not in ("all", 0, 1):
        raise ValueError(f"{x.dim()} dimensions and dim={dim!r}: give a matrix, and dim all, 0 or 1")
    shape = () if dim == "all" else (x.shape[1 - int(dim)],)
    y = torch.empty(shape, dtype=torch.int64 if op == "argmax" else x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    if x.numel() == 0:
        if op in ("max", "argmax"):
            raise ValueError("a matrix without elements has no maximum: give at least one element")
        return y.zero_()
    flat, inner = _as_outputs(x, dim)
    with on_device_of(x):
        _launch(op, flat, inner, y)
    return y


def _as_outputs(x: Tensor, dim: str | int) -> tuple[Tensor, bool]:
    """Return ``x`` as [outputs, elements], and whether dimension 1 of that, not dimension 0, has the stride 1."""
    if dim == "all":
        return x.contiguous().view(1, -1), True
    flat = x if dim == 1 else x.t()
    if flat.stride(1) != 1 and flat.stride(0) != 1:
        flat = x.contiguous() if dim == 1 else x.contiguous().t()
    return flat, flat.stride(1) == 1


def _launch(op: str, x: Tensor, inner: bool, y: Tensor) -> None:
    outs, count = x.shape
    plan = plan_for(outs, count, x.element_size(), inner, multiprocessors(x))
    stride, length = (x.stride(0), count) if inner else (x.stride(1), outs)
    unit = 16 // x.element_size()
    if stride % unit or length % unit:
        unit = 1
    arithmetic = torch.float64 if x.dtype == torch.float64 else torch.float32
    values = places = counters = y  # unused if each output has one program
    if plan.segments > 1:
        partial = plan.groups * plan.segments * plan.outs
        values = torch.empty(partial, dtype=arithmetic, device=x.device)
        places = torch.empty(partial if op == "argmax" else 0, dtype=torch.int64, device=x.device)
        counters = _counters(x, plan.groups)
    _reduce[(plan.groups, plan.segments)](
        x,
        y,
        values,
        places,
        counters,
        stride // unit,
        outs if inner else outs // unit,
        count // unit if inner else count,
        plan.steps,
        plan.segments,
        OP=op,
        INNER=inner,
        UNIT=unit,
        ARITHMETIC=tl.float64 if arithmetic == torch.float64 else tl.float32,
        OUTS=plan.outs,
        STEP=plan.step,
        ALL_OUTS=outs % plan.outs == 0,
        ALL_STEPS=count % plan.step == 0,
        TOGETHER=0 if plan.segments == 1 else together_for(plan),
        num_warps=max(1, plan.outs * plan.step // WARP_ELEMENTS),
    )


def together_for(plan: Plan) -> int:
    """Return how many partial results of an output the last program combines at once."""
    return min(int(triton.next_power_of_2(plan.segments)), max(1, COMBINED // plan.outs))


def _counters(x: Tensor, count: int) -> Tensor:
    """Return ``count`` counters that are 0."""
    if torch.compiler.is_compiling() or not x.is_cuda:
        return torch.zeros(count, dtype=torch.int32, device=x.device)
    return _memory(x.device.index).take(4 * count).view(torch.int32)


@cache
def _memory(index: int) -> StreamMemory:
    return StreamMemory(torch.device("cuda", index))
