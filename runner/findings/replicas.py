"""Merge the replicas of a case into one row."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from ..records.case import Scalar
from ..records.figures import interval
from ..records.grouping import grouped
from ..records.row import Row
from ..timing.statistics import t_975
from ..timing.verdict import GRAVITY
from .validity import gravity_of


def replicas_by_case(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each case, one per replica, by ``CaseRecord.shared_key``."""
    return grouped(rows, lambda row: row.case.shared_key)


def merge_replicas(rows: Sequence[Row]) -> Row:
    """Return one row for the replicas of a case.

    It is a failed replica if there is one, else a wrong one, else the first; its time is the mean of all.
    """
    if len(rows) == 1:
        return rows[0]
    if untimed := [row for row in rows if row.time_us is None]:
        return next((row for row in untimed if row.status != "ok"), untimed[0])
    chosen = next((row for row in rows if row.status != "ok"), rows[0])
    mean, half = fmean(_times(rows)), _half_interval(rows)
    percent = 100 * half / mean if mean else None
    combined: dict[str, Any] = {"samples": sum, "min_us": min}
    metrics: dict[str, Any] = {
        name: combine(row.metrics[name] for row in rows)
        for name, combine in combined.items()
        if all(name in row.metrics for row in rows)
    }
    return with_time(chosen, mean, max(0.0, mean - half), mean + half, percent, **metrics | _verdict(rows, percent))


def with_time(row: Row, us: float, low_us: float, high_us: float, percent: float | None, **metrics: Any) -> Row:
    """Return ``row`` with another time, the ends of its interval and half the width, and further ``metrics``."""
    own: Any = row.metrics
    shares = {name: share for name in ("pct_of_measured_peak", "pct_datasheet") if (share := own.get(name))}
    metrics |= {name: share * (row.time_us or 0.0) / us for name, share in shares.items() if us}
    metrics |= {"low_us": low_us, "high_us": high_us, "interval_pct": percent}
    return replace(row, metrics={**own, **metrics, "gpu_us" if "gpu_us" in own else "wall_us": us})


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.time_us for row in rows if row.time_us is not None]


def between_pct(rows: Sequence[Row]) -> float | None:
    """Return the standard deviation between processes in percent of the time; None for one process or a time of 0."""
    times = _times(rows)
    return 100 * stdev(times) / fmean(times) if len(times) > 1 and any(times) else None


def halves(row: Row) -> tuple[float, float]:
    """Return the half-widths of a time's interval from sampling and from the instrument, as shares."""
    sampling, whole = (float(row.metrics.get(name) or 0.0) / 100 for name in ("stat_pct", "interval_pct"))
    return sampling, math.sqrt(max(0.0, whole**2 - sampling**2))


def _half_interval(rows: Sequence[Row]) -> float:
    """Return half the 95 % interval of the mean in us.

    The instrument's uncertainty may be the same in all processes, so more of them do not reduce it.
    """
    times = _times(rows)
    mean, count = fmean(times), len(times)
    sampling, instrument = (min(shares) for shares in zip(*map(halves, rows), strict=True))
    between = t_975(count - 1) * stdev(times)
    return math.hypot(between / math.sqrt(count), mean * sampling / math.sqrt(count), mean * instrument)


def _verdict(rows: Sequence[Row], interval_pct: Any) -> dict[str, Scalar]:
    """Return the gravest verdict of all processes, or ``not_converged`` if they differ by more than was asked for."""
    gravity = list(map(gravity_of, rows))
    target = "target_cpu_pct" if rows[0].device == "cpu" else "target_pct"
    wanted: Any = next((choice.fields[target] for choice in rows[0].case.measures if target in choice.fields), None)
    if min(gravity) > GRAVITY.index("timer_limited") and interval_pct and wanted and interval_pct > wanted:
        reason = f"the interval is {interval(interval_pct, '+-')}, since {len(rows)} processes differ"
        return {"verdict": "not_converged", "verdict_reason": reason}
    gravest = rows[gravity.index(min(gravity))]
    return {name: gravest.metrics[name] for name in ("verdict", "verdict_reason") if name in gravest.metrics}
