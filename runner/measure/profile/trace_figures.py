"""The figures of profiled calls, for the row. No torch here."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from runner.experiment.case import Scalar
from runner.measure.profile.trace import Call
from runner.measure.timeline import covered, gaps, whole
from runner.timing.statistics import trimmed_mean

LONGEST_NAME = 60
WHAT = "kernels, copies and fills of a call"
NOISE = (
    "void ",
    "at::native::",
    "at::detail::",
    "(anonymous namespace)::",
    "<unnamed>::",
    "std::",
)  # in what a C++ kernel is called


def columns(calls: Sequence[Call]) -> dict[str, Scalar]:
    """What the GPU did for ``calls``, each of which has at least one kernel; by ``runner.experiment.columns``."""
    busy = [covered(call.work) for call in calls]
    spans = [whole(call.work) for call in calls]
    kernel, kernel_us = top_kernel(calls)
    found: dict[str, Scalar] = {
        "profile_gpu_us": trimmed_mean(busy),
        "profile_kernels": statistics.mode(len(call.work) for call in calls),
        "busy_pct": 100 * sum(busy) / sum(spans),
        "idle_us": trimmed_mean([all_us - busy_us for all_us, busy_us in zip(spans, busy, strict=True)]),
        "longest_gap_us": statistics.median(max(gaps(call.work), default=0.0) for call in calls),
        "top_kernel": short(kernel),
        "top_kernel_pct": 100 * kernel_us / sum(work.event.us for call in calls for work in call.work),
    }
    launched = [(work, work.launch) for call in calls for work in call.work if work.launch]
    if launched:
        once = {id(launch): launch.us for _, launch in launched}  # a CUDA graph's launch has many kernels
        found["launch_us"] = statistics.mean(once.values())
        found["queue_us"] = statistics.mean(max(0.0, work.start - launch.end) for work, launch in launched)
    return found


def top_kernel(calls: Sequence[Call]) -> tuple[str, float]:
    """The kernel, copy or fill that took longest in all, and how long, in microseconds."""
    sums: dict[str, float] = {}
    for call in calls:
        for work in call.work:
            sums[work.event.name] = sums.get(work.event.name, 0.0) + work.event.us
    return max(sums.items(), key=lambda item: item[1])


def note(calls: Sequence[Call], expected: int | None) -> str:
    """What does not fit in the kernels that were seen, ``expected`` of which the benchmark saw; empty if all does."""
    counts = sorted({len(call.work) for call in calls})
    seen = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if expected is not None and counts != [expected]:
        return f"{WHAT}: {seen} here, {expected} by the benchmark"
    return f"{WHAT}: {seen}, not the same each time" if len(counts) > 1 else ""


def short(name: str) -> str:
    """A C++ kernel's name without its arguments and the namespaces that all have: 60 characters at most."""
    name = re.sub(r"\((?!anonymous namespace\)).*\)$", "", name) if name.startswith("void ") else name
    for noise in NOISE:
        name = name.replace(noise, "")
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
