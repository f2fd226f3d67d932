"""CUPTI's word for when each kernel of a call began and ended, through torch's profiler: the timestamps' cupti_check.

By ``torch.autograd.profiler``: ``torch.profiler``, which is around it, would import all of torch._dynamo, for 3.6 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runner.timing.gpu_kernels import boundary, spin
from runner.timing.statistics import trimmed_mean
from runner.timing.timeline import covered, whole
from runner.timing.timestamp_buffer import CYCLES_A_SECOND

MOST_CALLS = 30  # profiled: the mean is then good to a few nanoseconds
MOST_RECORDS = 300  # of which some microseconds of Python each go into reading them
LONGEST_S = 0.1  # spent on them, though never on fewer than two

STREAM_S = 0.002  # the GPU is kept busy so long while a call is launched whose streams are to be told apart
BOUNDARY, SPIN = "boundary", "spin"  # our own kernels, by name


@dataclass(frozen=True)
class Record:
    """Something the GPU did; in microseconds."""

    start: float
    end: float
    name: str
    stream: int


@dataclass(frozen=True)
class CuptiTime:
    """One call, launched kernel by kernel on a stream behind its preparation; in microseconds."""

    span_us: float  # from the start of the first kernel to the end of the last
    busy_us: float  # of it, the time in which some kernel ran
    kernels: int  # kernels, copies and fills
    detached: bool  # some run on a stream that does not wait for the caller's, or that the caller's does not wait for


def observe(
    call: Callable[[], object], before: Callable[[], object], *, kernels: int | None = None, calls: int | None = None
) -> CuptiTime | None:
    """What CUPTI saw of ``calls`` of ``call``; None if it is blind, or did not see the same each time.

    It is not blind if it saw what we launch before and after a call: one in which nothing runs has 0 kernels.

    By default there are 30 calls, or fewer if they are of many ``kernels``, or long.
    """
    if calls is None:
        each_s = min(_seconds(call, before) for _ in range(2))  # the first may load something
        calls = max(2, min(MOST_CALLS, MOST_RECORDS // max(1, kernels or 1), int(LONGEST_S / each_s)))
    records = _records(call, before, calls)
    each = _of_each(records)
    counts = {len(own) for own in each}
    if len(each) != calls or len(counts) != 1:
        return None
    if counts == {0}:
        return CuptiTime(span_us=0.0, busy_us=0.0, kernels=0, detached=False)
    return CuptiTime(
        span_us=trimmed_mean([whole(own) for own in each]),
        busy_us=trimmed_mean([covered(own) for own in each]),
        kernels=counts.pop(),
        detached=len({r.stream for r in records}) > 1 and _detached(call, before),
    )


def each_kernel(
    call: Callable[[], object], before: Callable[[], object], calls: int = 5
) -> dict[str, tuple[int, float]]:
    """Kernel → launches, and microseconds of all of them, in one call; empty if CUPTI saw nothing.

    Copies and fills are kernels too, as CUPTI calls them.
    """
    found: dict[str, list[float]] = {}
    each = _of_each(_records(call, before, calls))
    for own in each:
        for record in own:
            found.setdefault(record.name, []).append(record.end - record.start)
    return {name: (round(len(times) / len(each)), sum(times) / len(each)) for name, times in found.items()}


def recorded(profile: torch.autograd.profiler.profile) -> list[Record]:
    """Everything the GPU did while ``profile`` watched, by when it began."""
    on_gpu = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # it is there, and not in the stubs
    records = [
        Record(event.time_range.start, event.time_range.end, event.name, event.device_resource_id)
        for event in profile.function_events or []
        if event.device_type == on_gpu
    ]
    return sorted(records, key=lambda record: record.start)


def _records(call: Callable[[], object], before: Callable[[], object], calls: int, busy_s: float = 0.0) -> list[Record]:
    """Everything the GPU did, by when it began: each call between two boundaries, and a third after its end.

    The first boundary comes after ``busy_s`` in which the caller's stream is busy.
    """
    boundary[(1,)](num_warps=1)  # Triton compiles them
    spin[(1,)](1, num_warps=1)
    torch.cuda.synchronize()
    with torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True) as profile:
        for _ in range(calls):
            before()
            torch.cuda.synchronize()  # else a stream of the call's own would begin while that is being done
            if busy_s:
                spin[(1,)](int(busy_s * CYCLES_A_SECOND), num_warps=1)
            boundary[(1,)](num_warps=1)
            call()
            boundary[(1,)](num_warps=1)
            torch.cuda.synchronize()
            boundary[(1,)](num_warps=1)
        torch.cuda.synchronize()
    return recorded(profile)


def _seconds(call: Callable[[], object], before: Callable[[], object]) -> float:
    """About what one call takes, by the host's clock."""
    before()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _of_each(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each call."""
    edges = [record for record in records if record.name == BOUNDARY]
    rest = [record for record in records if record.name != BOUNDARY]
    return [
        [record for record in rest if opened.start <= record.start < settled.start]
        for opened, settled in zip(edges[::3], edges[2::3], strict=False)
    ]


def _detached(call: Callable[[], object], before: Callable[[], object]) -> bool:
    """Whether some of ``call`` begins before, or ends after, what the caller's stream does around it.

    That stream is busy while the call is launched: whoever does not wait for it begins at once, and the boundary after
    the call, which has been launched by then, begins as soon as all that it waits for is done.
    """
    records = _records(call, before, 3, STREAM_S)
    edges = [record for record in records if record.name == BOUNDARY]
    spins = [record for record in records if record.name == SPIN]
    for busy, opened, closed, settled in zip(spins, edges[::3], edges[1::3], edges[2::3], strict=False):
        inside = [r for r in records if busy.start < r.start < settled.start and r.name != BOUNDARY]
        if any(record.start < opened.start or record.end > closed.start for record in inside):
            return True
    return False
