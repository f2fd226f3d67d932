"""The bars and both tables of the spread between processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from benchmarks.common import digits, table
from benchmarks.timer.timer_spread.process import CALLS, CAPTURES, SPINS_US
from benchmarks.timer.timer_spread.series import (
    LONGER_1,
    LONGER_2,
    METHODS,
    Longer,
    Pair,
    Process,
    Spread,
    Word,
    longer,
    spread,
)


def report(processes: Sequence[Process], seconds: float) -> str:
    """Return the bars and both tables."""
    spreads = {method: [spread(processes, call, method) for call in CALLS] for method in METHODS}
    found = {
        method: [longer(processes, f"spin {us} us", role, method) for us in SPINS_US for role in (LONGER_1, LONGER_2)]
        for method in METHODS
    }
    count = len(next(iter(processes[0].series.values())))
    constants = {method: [process.head["constant_us"][method] for process in processes] for method in METHODS}
    taken_off = ", ".join(
        f"{method} {fmean(some):.3f} us (sd between processes {stdev(some) * 1e3:.1f} ns)"
        for method, some in constants.items()
    )
    empty_kernel_us = fmean(process.head["empty_kernel_us"] for process in processes)
    inside_s = median(process.head["setup_s"] + process.head["sampling_s"] for process in processes)
    return "\n\n".join(
        [
            f"{len(processes)} fresh processes, {count} samples an arm from {CAPTURES} captures. Taken off: "
            f"{taken_off}; an empty kernel keeps what CUPTI gives it, {empty_kernel_us:.3f} us. {inside_s:.1f} s a "
            "process, after its imports" + (f", {seconds:.0f} s in all." if seconds else "."),
            "## Bars, for timestamps\n\n"
            + table(["bar", "seen", ""], bars(spreads["timestamps"], found["timestamps"])),
            "## The same call in every process: timestamps / events\n\n"
            + spread_table(spreads["timestamps"], spreads["events"])
            + "\n\nsd: between processes. Apart: pairs of processes more than 1 % apart. A/A': pairs in one process "
            "called different, or the same within 1 %. Coverage: whole intervals of one process that hold "
            "the mean of all. A'/A: median; A and A' have other buffers, and where these lie makes up to 6 %, for both "
            "methods alike: they time the same buffers. That equal calls on the same buffers are not called different "
            "is shown by `benchmarks.timer.fair_pairs`.",
            "## A spin that is longer: timestamps / events\n\n"
            + longer_table(found["timestamps"], found["events"])
            + "\n\nRead: median of the ratio. Width: median of half its interval. Found: called slower.",
        ]
    )


def bars(spreads: Sequence[Spread], found: Sequence[Longer]) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    farthest = max(spreads, key=lambda one: fmean(one.pairs_apart))
    least = 1 - fmean(farthest.pairs_apart)
    within = 1 - fmean(apart for each in spreads for apart in each.pairs_apart)
    lines = [
        (
            "two processes within 1 % in 98 % of pairs or more",
            f"{100 * within:.1f} % of all ({farthest.call}: {100 * least:.1f} %)",
            within >= 0.98,
        ),
    ]
    if short := [one for one in spreads if one.time_us < 30]:
        widest = max(short, key=lambda one: one.sd_ns)
        lines.append(("sd 40 ns or less below 30 us", f"{widest.sd_ns:.1f} ns ({widest.call})", widest.sd_ns <= 40))
    for one in found:
        if (one.call, one.role) in PROMISED:
            lines.append(
                (f"{one.role} of {one.call} found in 95 % or more", _count(one.pairs, ("slower",)), one.found >= 0.95)
            )
    holds = [inside for each in spreads for inside in each.covered]
    lines.append(("coverage 93 to 100 %", _percent(holds), fmean(holds) >= 0.93))
    return [(promise, seen, "PASS" if met else "MISS") for promise, seen, met in lines]


PROMISED = {("spin 5 us", LONGER_2), ("spin 17 us", LONGER_1), ("spin 450 us", LONGER_1)}


def spread_table(timestamps: Sequence[Spread], events: Sequence[Spread]) -> str:
    """Return a table with a line for each call."""
    titles = ["call", "us", "sd, ns", "apart, %", "A'/A, %", "A/A' different", "A/A' same", "coverage, %"]
    lines = []
    for both in zip(timestamps, events, strict=True):
        lines.append(
            (
                both[0].call,
                " / ".join(f"{one.time_us:.3f}" for one in both),
                " / ".join(f"{one.sd_ns:.1f}" for one in both),
                " / ".join(f"{100 * fmean(one.pairs_apart):.1f}" for one in both),
                " / ".join(_ratio(one.again) for one in both),
                " / ".join(_count(one.again, ("slower", "faster")) for one in both),
                " / ".join(_count(one.again, ("same",)) for one in both),
                f"{100 * fmean(both[0].covered):.0f}",
            )
        )
    return table(titles, lines)


def longer_table(timestamps: Sequence[Longer], events: Sequence[Longer]) -> str:
    """Return a table with a line for each spin and length."""
    lines = []
    for both in zip(timestamps, events, strict=True):
        lines.append(
            (
                f"{both[0].call} {both[0].role}",
                " / ".join(_ratio(one.pairs) for one in both),
                " / ".join(digits(100 * median(p.half for p in one.pairs)) for one in both),
                " / ".join(_count(one.pairs, ("slower",)) for one in both),
            )
        )
    return table(["spin", "read, %", "width, %", "found"], lines)


def _ratio(pairs: Sequence[Pair]) -> str:
    """Return the median of the additional time of B over A, in percent."""
    return f"{100 * math.expm1(median(one.log_ratio for one in pairs)):+.2f}"


def _count(pairs: Sequence[Pair], words: tuple[Word, ...]) -> str:
    return f"{sum(one.word in words for one in pairs)} of {len(pairs)}"


def _percent(some: Sequence[bool]) -> str:
    return f"{100 * fmean(some):.1f} % of {len(some)}"
