"""Sum, maximum, place of the maximum and 2-norm of a matrix, or of each of its rows or columns, in one Triton kernel.

A program reduces a tile at a time: the elements of a step for several outputs. Each element of the tile has an
accumulator, so the loop has no reduction across threads. Registers that no accumulator takes hold more loads of 16
bytes, and a multiprocessor has 64 KiB or more on their way from memory. Tiles of columns are narrow, so that few
programs share a column, and the last of them has few partial results to combine.

A long row may begin anywhere in memory: its steps begin where 16 bytes can be loaded at once, the first one before the
row, with the elements before it left out.

If there are few outputs, several programs share each of them. Each of these programs stores its partial result and
counts itself; the last one to arrive combines the partial results, always in the same order, so the result does not
depend on the order of arrival. A second launch would do without the counter, but it takes about 2 us, as long as
reading 8 MB. The last program sets the counter to 0 for the next launch. ``stream_memory`` has the counters.

A maximum is NaN if an element is NaN, and the place is then that of the first NaN, as in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .stream_memory import counters
from .triton_device import multiprocessors, require_floats, require_gpu
from .triton_launch import each_time, planned, repeatable

WARPS = 8  # of a program that loops
TILE = 4096  # elements of a row, of up to 32 bits, that a loop adds at once: 16 accumulators for each thread
UNROLL = {2: 4, 4: 1, 8: 1}  # steps along a row whose loads are on their way at the same time, by bytes of an element
ROW_BYTES = 16384  # of a row that is read at once, without a loop; half as many for argmax
WARP_BYTES = 2048  # of such a row, for each warp: four accesses of 16 bytes for each thread
LINE_BYTES = 128  # of a row that a tile reads where it reduces columns: a line of the cache
COLUMN_BYTES, COLUMN_UNROLL = 8192, 4  # of such a tile, and tiles whose loads are on their way at the same time
COMBINED = 1024  # partial results that the last program combines at once

RESIDENT = 4  # programs that a multiprocessor holds at least; test_compiled_triton.py checks it
TERMS = 2**13  # elements of x, at most, that one accumulator adds one after the other; more would round too much


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
def _larger(x, i, z, j):
    """Return the larger of x and z, and its place: NaN is larger than a number, and the first of equals is taken."""
    first = (x > z) | ((x == z) & (i < j)) | ((x != x) & ((z == z) | (i < j)))
    return tl.where(first, x, z), tl.where(first, i, j)


@triton.jit
def _maximum(x, z):
    return tl.maximum(x, z, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _across(best, place, OP: tl.constexpr):
    """Return value and place of each output, from its accumulators along dimension 1."""
    if OP == "argmax":
        value, first = tl.reduce((best, place), 1, _larger)
    else:
        value = tl.reduce(best, 1, _maximum) if OP == "max" else tl.sum(best, axis=1)
        first = tl.zeros_like(value).to(place.dtype)
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
    lead,
    outs,
    count,
    rounds,
    extra,
    segments,
    OP: tl.constexpr,
    INNER: tl.constexpr,
    UNIT: tl.constexpr,
    LENGTH_UNIT: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    UNROLL: tl.constexpr,
    LOOP: tl.constexpr,
    ALL_OUTS: tl.constexpr,
    ALL_STEPS: tl.constexpr,
    ALIGN: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    # If INNER, the elements of an output are neighbours in memory; else the outputs are. ``stride`` is that of the
    # other dimension, in units of UNIT elements, and the length of the inner dimension is in units of LENGTH_UNIT.
    # That shows the compiler how many elements it may load at once. Offsets are int64: int32 overflows at 2**31.
    group = tl.program_id(0).to(tl.int64)
    segment = tl.program_id(1).to(tl.int64)
    lane_out = tl.arange(0, OUTS)
    lane = tl.arange(0, STEP)
    # The first ``extra`` programs that share an output have a round more than the others.
    first_step = (segment * rounds + tl.minimum(segment, extra)) * UNROLL
    steps = (rounds + (segment < extra).to(tl.int32)) * UNROLL
    start = first_step * STEP
    zero = tl.zeros((), tl.int64)
    shift = zero
    if ALIGN > 1:
        # One output, whose elements may begin anywhere, ``lead`` elements or more behind x_ptr. Steps begin ``shift``
        # elements before it or before another step, where ALIGN elements can be loaded at once.
        origin = group * stride + lead
        shift = origin % ALIGN
        outs_left = outs - group
        left = tl.maximum((zero + count) * LENGTH_UNIT + shift - start, 0)
        jump = tl.full((), STEP, tl.int64)
        at = x_ptr + (origin // ALIGN * ALIGN + start) + lane[None, :]
    elif INNER:
        outs_left = outs - group * OUTS
        left = (zero + count) * LENGTH_UNIT - start
        jump = tl.full((), STEP, tl.int64)
        at = x_ptr + start + ((group * OUTS + lane_out) * stride * UNIT)[:, None] + lane[None, :]
    else:
        outs_left = (zero + outs) * LENGTH_UNIT - group * OUTS
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
    first = 0
    if ALIGN > 1:  # noqa: SIM102  # the first is known when it is compiled
        if segment == 0:
            x = tl.load(at, mask=(lane >= shift)[None, :], other=least).to(ARITHMETIC)
            best, place = _accumulate(best, place, x, 0, OP)
            first += 1
    if LOOP:
        # Unrolled, so that the loads of UNROLL steps are on their way before the first is added.
        for step in tl.range(first, full, loop_unroll_factor=UNROLL):
            x = tl.load(at + step * jump, mask=inside, other=padding).to(ARITHMETIC)
            best, place = _accumulate(best, place, x, step, OP)
    elif ALL_STEPS:
        x = tl.load(at, mask=inside, other=padding).to(ARITHMETIC)
        best, place = _accumulate(best, place, x, 0, OP)
    if not ALL_STEPS:  # noqa: SIM102  # the first is known when it is compiled
        if full < steps:
            rest = left - full.to(tl.int64) * STEP
            last = at + full * jump
            x = tl.load(last, mask=(lane_out < outs_left)[:, None] & (lane < rest)[None, :], other=least)
            best, place = _accumulate(best, place, x.to(ARITHMETIC), full, OP)
    value, nearest = _across(best, place * STEP + lane[None, :], OP)
    # The place is below 0 if all elements are -inf, as those before the first.
    place_of_first = tl.maximum(nearest.to(tl.int64) + start - shift, 0)

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
    unroll: int  # steps of a round, whose loads are on their way at the same time
    groups: int  # programs side by side
    rounds: int  # of a program
    extra: int  # programs with one round more, of those that share an output
    segments: int  # programs that share an output
    warps: int  # of a program

    @property
    def loop(self) -> bool:
        """Whether the elements of an output are more than one step."""
        return self.unroll * (self.segments * self.rounds + self.extra) > 1

    @property
    def together(self) -> int:
        """Partial results of an output that the last program combines at once; 0 if there are none."""
        if self.segments == 1:
            return 0
        return min(int(triton.next_power_of_2(self.segments)), max(1, COMBINED // self.outs))


def plan_for(op: str, outs: int, count: int, itemsize: int, inner: bool, wide: bool, processors: int) -> Plan:
    """Return the plan.

    Args:
        op: as for ``reduce``.
        outs: the number of outputs.
        count: the number of elements of each.
        itemsize: bytes of an element.
        inner: whether the elements of an output, not the outputs, are neighbours in memory.
        wide: whether 16 bytes can be loaded at once. Elements loaded one by one take a register each.
        processors: multiprocessors of the GPU.

    """
    halves = 2 if op == "argmax" else 1  # it keeps a place beside each value
    if inner:
        line, step, unroll = 1, TILE * min(4, itemsize) // itemsize // halves, UNROLL[itemsize]
        longest = ROW_BYTES // itemsize // halves
    else:
        line, unroll = min(triton.next_power_of_2(outs), LINE_BYTES // itemsize), COLUMN_UNROLL
        longest = step = COLUMN_BYTES // itemsize // line // halves
    if count > longest:  # a loop
        unroll, together, warps = min(unroll, triton.cdiv(count, step)) if wide else 1, line, WARPS
    else:
        tile, step, unroll = line * step, triton.next_power_of_2(count), 1
        together = min(triton.next_power_of_2(outs), max(line, tile // step))
        while together > line and triton.cdiv(outs, together) < WARPS * processors:
            together //= 2  # short outputs are shared among all multiprocessors
        warps = min(WARPS, together * step * itemsize // WARP_BYTES)
        if warps <= 2:
            warps = 1  # needs no barrier
    groups, all_rounds = triton.cdiv(outs, together), triton.cdiv(count, step * unroll)
    segments = max(triton.cdiv(all_rounds * unroll, TERMS), min(all_rounds, RESIDENT * processors // groups))
    return Plan(together, step, unroll, groups, all_rounds // segments, all_rounds % segments, segments, warps)


@planned
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
    y = each_time(torch.empty, shape, dtype=torch.int64 if op == "argmax" else x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    if x.numel() == 0:
        if op in ("max", "argmax"):
            raise ValueError("a matrix without elements has no maximum: give at least one element")
        return y.zero_()
    flat, inner = _as_outputs(x, dim)
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
    stride, length = (x.stride(0), count) if inner else (x.stride(1), outs)
    wide = 16 // x.element_size()
    unit = wide if stride % wide == 0 or (outs if inner else count) == 1 else 1
    length_unit = wide if length % wide == 0 else 1
    lead = 0 if torch.compiler.is_compiling() else x.storage_offset() % wide  # torch.compile cannot trace it
    at_once = unit > 1 and lead == 0 and (inner or length_unit > 1)
    shifted = inner and not at_once and count * x.element_size() > ROW_BYTES  # so that it loops
    if shifted:
        x = x.as_strided(x.shape, x.stride(), x.storage_offset() - lead) if lead else x
        unit = 1
    plan = plan_for(
        op,
        outs,
        count + wide - 1 if shifted else count,
        x.element_size(),
        inner,
        at_once or shifted,
        multiprocessors(x),
    )
    arithmetic = torch.float64 if x.dtype == torch.float64 else torch.float32
    values = places = counted = y  # unused if each output has one program
    if plan.segments > 1:
        partial = plan.groups * plan.segments * plan.outs
        values = each_time(torch.empty, partial, dtype=arithmetic, device=x.device)
        if op == "argmax":
            places = each_time(torch.empty, partial, dtype=torch.int64, device=x.device)
        counted = counters(x, plan.groups)
    repeatable(_reduce)[(plan.groups, plan.segments)](
        x,
        y,
        values,
        places,
        counted,
        stride // unit,
        lead,
        outs if inner else outs // length_unit,
        count // length_unit if inner else count,
        plan.rounds,
        plan.extra,
        plan.segments,
        OP=op,
        INNER=inner,
        UNIT=unit,
        LENGTH_UNIT=length_unit,
        ARITHMETIC=tl.float64 if arithmetic == torch.float64 else tl.float32,
        OUTS=plan.outs,
        STEP=plan.step,
        UNROLL=plan.unroll,
        LOOP=plan.loop,
        ALL_OUTS=outs % plan.outs == 0,
        ALL_STEPS=count % plan.step == 0 and not shifted,
        ALIGN=wide if shifted else 1,
        TOGETHER=plan.together,
        num_warps=plan.warps,
    )
