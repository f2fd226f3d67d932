"""CUPTI's times of the kernels of a call, to check the timestamps.

CUPTI is used through ``torch.autograd.profiler``, since ``torch.profiler`` imports torch._dynamo, which takes 3.6 s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..records.grouping import grouped
from . import clock as time
from .gpu_kernels import boundary, spin
from .statistics import trimmed_mean
from .timeline import covered, whole
from .timestamps import CYCLES_A_SECOND

MOST_CALLS = 30  # profiled calls, whose mean is exact to a few nanoseconds
EACH_CALLS = 5  # calls over which the time of each kernel is averaged
MOST_RECORDS = 300  # reading a record takes some microseconds of Python
LONGEST_S = 0.1  # for all calls, if there are more than two

STREAM_S = 0.002  # spin before a call; work on a stream that does not wait for the spin starts earlier
BOUNDARY, SPIN = "boundary", "spin"  # names of our own kernels


@dataclass(frozen=True)
class Record:
    """One kernel, copy or fill; times in us."""

    start: float
    end: float
    name: str
    stream: int


@dataclass(frozen=True)
class CuptiTime:
    """Mean of several calls, each launched kernel by kernel after its preparation."""

    span_us: float  # from the start of the first kernel to the end of the last
    busy_us: float  # the part of it in which a kernel ran
    kernels: int  # number of kernels, copies and fills
    detached: bool  # whether work runs on a stream that does not wait for the caller's, or the reverse


def observe(
    call: Callable[[], object], before: Callable[[], object], *, kernels: int | None = None, calls: int | None = None
) -> CuptiTime | None:
    """Observe ``calls`` of ``call``, each after ``before``: by default 30, or fewer if long or of many ``kernels``.

    None if CUPTI saw nothing, or numbers of kernels that differ between calls.
    """
    if calls is None:
        each_s = min(_seconds(call, before) for _ in range(2))  # the first call may load something
        calls = max(2, min(MOST_CALLS, MOST_RECORDS // max(1, kernels or 1), int(LONGEST_S / each_s)))
    records = record_calls(call, before, calls)
    by_call = _by_call(records)
    counts = {len(work) for work in by_call}
    if len(by_call) != calls or len(counts) != 1:
        return None
    return CuptiTime(
        span_us=trimmed_mean([whole(work) for work in by_call]),
        busy_us=trimmed_mean([covered(work) for work in by_call]),
        kernels=counts.pop(),
        detached=len({r.stream for r in records}) > 1 and _detached(call, before),
    )


def each_kernel(call: Callable[[], object], before: Callable[[], object]) -> dict[str, tuple[int, float]]:
    """Return kernel, copy or fill → launches and their total time in us per call. Empty without CUPTI."""
    by_call = _by_call(record_calls(call, before, EACH_CALLS))
    kernels = grouped((record for work in by_call for record in work), lambda record: record.name)
    times_us = {name: [record.end - record.start for record in records] for name, records in kernels.items()}
    return {name: (round(len(us) / len(by_call)), sum(us) / len(by_call)) for name, us in times_us.items()}


def recorded(profile: torch.autograd.profiler.profile) -> list[Record]:
    """Return everything on the GPU that ``profile`` recorded, sorted by start."""
    on_gpu = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # missing in the stubs only
    records = [
        Record(event.time_range.start, event.time_range.end, event.name, event.device_resource_id)
        for event in profile.function_events or []
        if event.device_type == on_gpu
    ]
    return sorted(records, key=lambda record: record.start)


def record_calls(
    call: Callable[[], object], before: Callable[[], object], calls: int, busy_s: float = 0.0
) -> list[Record]:
    """Record ``calls`` calls. Each is between two boundary kernels; a third follows when the GPU has finished.

    The caller's stream is kept busy for ``busy_s`` seconds before each call.
    """
    boundary[(1,)](num_warps=1)  # Triton compiles them
    spin[(1,)](1, num_warps=1)
    torch.cuda.synchronize()
    with torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True) as profile:
        for _ in range(calls):
            before()
            torch.cuda.synchronize()  # otherwise work on another stream would start during the preparation
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
    before()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _by_call(records: Sequence[Record]) -> list[list[Record]]:
    edges = [record for record in records if record.name == BOUNDARY]
    work = [record for record in records if record.name != BOUNDARY]
    return [
        [record for record in work if opened.start <= record.start < finished.start]
        for opened, finished in zip(edges[::3], edges[2::3], strict=False)
    ]


def _detached(call: Callable[[], object], before: Callable[[], object]) -> bool:
    """Return whether part of ``call`` starts before, or ends after, the boundaries around it on the caller's stream.

    A spin occupies that stream while the call is launched. Work on a stream that does not wait starts at once. The
    boundary after the call starts as soon as everything that it waits for has finished.
    """
    records = record_calls(call, before, 3, STREAM_S)
    edges = [record for record in records if record.name == BOUNDARY]
    spins = [record for record in records if record.name == SPIN]
    for busy, opened, closed, finished in zip(spins, edges[::3], edges[1::3], edges[2::3], strict=False):
        inside = [r for r in records if busy.start < r.start < finished.start and r.name != BOUNDARY]
        if any(record.start < opened.start or record.end > closed.start for record in inside):
            return True
    return False
