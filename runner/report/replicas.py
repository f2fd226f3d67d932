"""One case in several processes → one row: their mean, and the interval that the processes themselves show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from runner.case import Scalar
from runner.measure.statistics import T_975
from runner.measure.verdict import GRAVITY
from runner.row import Row


def by_case(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each case, whatever their replica, in order of appearance."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(replace(row.case, replica=0).key, []).append(row)
    return list(cases.values())


def merged(rows: Sequence[Row]) -> Row:
    """The row of a case: its only one; else one that failed; else one that was wrong, or the first, with all's time."""
    if len(rows) == 1:
        return rows[0]
    failed = next((row for row in rows if row.time_us is None), None)
    speaks = next((row for row in rows if row.status != "ok"), rows[0])
    return failed or replace(speaks, metrics={**speaks.metrics, **_time(rows), **_verdict(rows)})


def between_pct(rows: Sequence[Row]) -> float | None:
    """Standard deviation of the time between processes, in percent of it; None for a single one, or a time of 0."""
    times = _times(rows)
    return 100 * stdev(times) / fmean(times) if len(times) > 1 and any(times) else None


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.time_us for row in rows if row.time_us is not None]


def _time(rows: Sequence[Row]) -> dict[str, Scalar]:
    """Mean and interval. What each process doubts of itself counts as well: it may be the same doubt in all."""
    times = _times(rows)
    mean, count = fmean(times), len(times)
    between = T_975[min(count - 1, max(T_975))] * stdev(times) / math.sqrt(count)
    intervals: list[Any] = [row.metrics.get("interval_pct") or 0.0 for row in rows]
    within = mean * min(intervals) / 100 / math.sqrt(count)
    half = math.hypot(between, within)
    column = "gpu_us" if "gpu_us" in rows[0].metrics else "wall_us"
    return {
        column: mean,
        "low_us": max(0.0, mean - half),
        "high_us": mean + half,
        "interval_pct": 100 * half / mean if mean else None,
    }


def _verdict(rows: Sequence[Row]) -> dict[str, Scalar]:
    """The gravest of all processes; a word of another version counts as grave."""
    words = [row.metrics.get("verdict", "ok") for row in rows]
    doubted = rows[min(range(len(rows)), key=lambda i: GRAVITY.index(words[i]) if words[i] in GRAVITY else 0)]
    return {name: doubted.metrics[name] for name in ("verdict", "verdict_reason") if name in doubted.metrics}
