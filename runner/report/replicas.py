"""One case in several processes → one row: their mean, and the interval that the processes themselves show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from runner.experiment.case import Scalar
from runner.experiment.results import Row
from runner.timing.statistics import T_975
from runner.timing.verdict import GRAVITY


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
    if untimed := [row for row in rows if row.time_us is None]:
        return next((row for row in untimed if row.status != "ok"), untimed[0])
    speaks, time = next((row for row in rows if row.status != "ok"), rows[0]), _time(rows)
    of_all = _of_all(rows, speaks) | time | _verdict(rows, time["interval_pct"])
    return replace(speaks, metrics={**speaks.metrics, **of_all})


def _of_all(rows: Sequence[Row], speaks: Row) -> dict[str, Scalar]:
    """What goes with the time of all: shares of it, how many samples, and the least of them."""
    mean = fmean(_times(rows))
    found: dict[str, Any] = {
        name: speaks.metrics[name] * (speaks.time_us or 0.0) / mean  # type: ignore[operator]
        for name in ("pct_of_measured_peak", "pct_datasheet")
        if mean and speaks.metrics.get(name)
    }
    if all("samples" in row.metrics for row in rows):
        found["samples"] = sum(row.metrics["samples"] for row in rows)
    if all("min_us" in row.metrics for row in rows):
        found["min_us"] = min(row.metrics["min_us"] for row in rows)  # type: ignore[type-var]
    return found


def between_pct(rows: Sequence[Row]) -> float | None:
    """Standard deviation of the time between processes, in percent of it; None for a single one, or a time of 0."""
    times = _times(rows)
    return 100 * stdev(times) / fmean(times) if len(times) > 1 and any(times) else None


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.time_us for row in rows if row.time_us is not None]


def _time(rows: Sequence[Row]) -> dict[str, Scalar]:
    """Mean and interval. What more samples would not show any of them may be the same in all, and stays."""
    times = _times(rows)
    mean, count = fmean(times), len(times)
    between = T_975[min(count - 1, max(T_975))] * stdev(times) / math.sqrt(count)
    doubts: list[tuple[Any, Any]] = [
        (row.metrics.get("interval_pct") or 0.0, row.metrics.get("stat_pct") or 0.0) for row in rows
    ]
    sampling = mean * min(stat for _, stat in doubts) / 100 / math.sqrt(count)
    unseen = mean * min(math.sqrt(max(0.0, whole**2 - stat**2)) for whole, stat in doubts) / 100
    half = math.hypot(between, sampling, unseen)
    column = "gpu_us" if "gpu_us" in rows[0].metrics else "wall_us"
    return {
        column: mean,
        "low_us": max(0.0, mean - half),
        "high_us": mean + half,
        "interval_pct": 100 * half / mean if mean else None,
    }


def _verdict(rows: Sequence[Row], interval_pct: Any) -> dict[str, Scalar]:
    """The gravest of all processes, or that they differ; a word of another version counts as grave."""
    words = [row.metrics.get("verdict", "ok") for row in rows]
    gravity = [GRAVITY.index(word) if word in GRAVITY else 0 for word in words]
    asked = _asked_pct(rows[0])
    if min(gravity) > GRAVITY.index("timer_limited") and interval_pct and asked and interval_pct > asked:
        why = f"the interval is +-{interval_pct:.1f} %, by what {len(rows)} processes differ"
        return {"verdict": "not_converged", "verdict_reason": why}
    doubted = rows[gravity.index(min(gravity))]
    return {name: doubted.metrics[name] for name in ("verdict", "verdict_reason") if name in doubted.metrics}


def _asked_pct(row: Row) -> float | None:
    """Half the interval that was asked for, in percent of the time; None of a row that does not say."""
    field = "target_cpu_pct" if row.device == "cpu" else "target_pct"
    asked: list[Any] = [measure.fields[field] for measure in row.case.measures if field in measure.fields]
    return next(iter(asked), None)
