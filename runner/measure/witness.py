"""CUPTI's word for when each kernel of a call began and ended, through torch.profiler: the stamps' witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runner.measure.statistics import trimmed_mean

MOST_CALLS = 30  # profiled: the mean is then good to a few nanoseconds
MOST_RECORDS = 300  # of which some microseconds of Python each go into reading them


@dataclass(frozen=True)
class Witness:
    """One call, launched kernel by kernel on a stream behind a flush; in microseconds."""

    span_us: float  # from the start of the first kernel to the end of the last
    busy_us: float  # of it, the time in which some kernel ran
    kernels: int  # kernels, copies and fills


def observe(
    call: Callable[[], object], flush: Callable[[], object] | None = None, calls: int | None = None
) -> Witness | None:
    """What CUPTI saw of ``calls`` of ``call``; None if its records cannot be told from the flush's, or are missing.

    By default there are 30 calls, or fewer if they are of many kernels.
    """
    flushing = 0 if flush is None else len(_activities(flush, 1))

    def behind_flush() -> None:
        if flush is not None:
            flush()
        call()

    calls = calls or max(2, min(MOST_CALLS, MOST_RECORDS // max(1, len(_activities(behind_flush, 1)))))
    records = _activities(behind_flush, calls)
    count, rest = divmod(len(records), calls)
    kernels = count - flushing
    if rest or kernels <= 0:
        return None
    each = [records[index * count + flushing : (index + 1) * count] for index in range(calls)]
    return Witness(
        span_us=trimmed_mean([max(end for _, end in one) - min(start for start, _ in one) for one in each]),
        busy_us=trimmed_mean([_union(one) for one in each]),
        kernels=kernels,
    )


def _activities(call: Callable[[], object], count: int) -> list[tuple[float, float]]:
    """Start and end of everything the GPU did for ``count`` calls, in microseconds, in the order it began."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # it is there, and not in the stubs
    seen = [event for event in profile.events() or [] if event.device_type == on_gpu]
    return sorted((event.time_range.start, event.time_range.end) for event in seen)


def _union(spans: list[tuple[float, float]]) -> float:
    """Time covered by at least one of ``spans``, which are sorted by start."""
    covered, reached = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
