"""The data of charts: the swept size, points with intervals, and the roofline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..records.case import CaseRecord
from ..records.columns import DERIVED, TIMING, Column
from ..records.figures import as_words, figure, finite, is_number, times
from .lines import Line
from .names import Names
from .validity import verdict

COMPUTE_FROM = 20  # operations per byte from which the rate shown is that of operations, without a measured peak


def swept(cases: Sequence[CaseRecord], names: Names) -> str:
    """Return the field of numbers that takes most values in ``cases`` of one workload; "" if none takes several."""
    counts: dict[str, int] = {}
    for name in names.axes[cases[0].workload.name] if cases else ():
        values = {case.workload.fields.get(name) for case in cases}
        counts[name] = len(values) if all(map(is_number, values)) else 0
    best = max(counts, key=lambda name: counts[name], default="")
    return best if counts.get(best, 0) > 1 else ""


def part(case: CaseRecord, names: Names, axis: str, gap: str = " ") -> str:
    """Return the fields that vary, but for ``axis``, with their values in ``case``: ``dtype=bfloat16 rows=64``."""
    return gap.join(as_words({name: value for name, value in names.problem(case).items() if name != axis}))


TIME, SPEEDUP = replace(DERIVED["time_us"], unit="s"), DERIVED["speedup"]  # what a vertical axis shows
MEMORY = replace(TIMING["peak_mem_bytes"], title="peak memory")
BANDWIDTH = Column("B/s", "minimum traffic over the time", title="bandwidth")
OPERATIONS = Column("FLOP/s", "operations over the time", title="operations")


def limiting_rate(lines: Sequence[Line]) -> Column | None:
    """Return the rate that limits most of ``lines``; None if their work is unknown."""
    votes = []
    for line in lines:
        flops, size = line.value("flops") or 0, line.value("bytes_min") or 0
        if flops or size:
            bound = line.value("bound") or ("compute" if flops > COMPUTE_FROM * size else "memory")
            votes.append(bound == "compute")
    if not votes:
        return None
    return OPERATIONS if 2 * sum(votes) > len(votes) else BANDWIDTH


def chart_point(run: str, line: Line, names: Names, axis: str, rate: Column | None) -> dict[str, Any]:
    """Return the figures of ``line``, in units without a prefix."""
    metrics, time_us = line.row.metrics, line.time_us or 0.0
    ends = [finite(metrics.get(name)) for name in ("low_us", "high_us")]
    low, high = ends if all(ends) and ends[0] else (None, None)
    point: dict[str, Any] = {
        "implementation": names.impl(line.case),
        "run": run,
        "size": line.case.workload.fields.get(axis) if axis else None,
        "verdict": verdict(line.row),
        **bounded("time", "us", (time_us, low, high), 1e-6),
        **bounded("memory", "byte", [finite(metrics.get("peak_mem_bytes")) or None]),
        **bounded("speedup", "x", (line.speedup, line.speedup_low, line.speedup_high)),
    }
    amount = metrics.get("flops" if rate is OPERATIONS else "bytes_min") if rate else None
    if rate and isinstance(amount, int | float) and amount > 0:
        point |= bounded("rate", rate.unit, [amount / us * 1e6 if us else None for us in (time_us, high, low)])
    return point


def bounded(name: str, unit: str, known: Sequence[float | None], factor: float = 1.0) -> dict[str, Any]:
    """Return a value in ``unit`` and the ends of its interval, times ``factor`` and as texts, without those unknown."""
    keyed = zip((name, f"{name}_low", f"{name}_high"), known, strict=False)
    found = {key: end for key, end in keyed if end is not None and math.isfinite(end)}
    point: dict[str, Any] = {key: float(f"{end * factor:.5g}") for key, end in found.items()}
    texts = [times(end) if unit == "x" else figure(end, unit) for end in found.values()]
    return point | dict(zip((f"{name}_text", f"{name}_interval"), [*texts[:1], " to ".join(texts[1:])], strict=False))


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of a GPU for one type; None if no row was compared with it."""

    bytes_per_s: float | None
    flop_per_s: float | None

    @property
    def text(self) -> str:
        """The known peaks with their units."""
        known = {"B/s": self.bytes_per_s, "FLOP/s": self.flop_per_s}
        return ", ".join(figure(value, unit, digits=3) for unit, value in known.items() if value)

    def points(self, intensities: Sequence[float]) -> list[dict[str, float]]:
        """Return the corners of the limit over ``intensities`` and somewhat beyond."""
        low, high = min(intensities) / 2, max(intensities) * 2
        slope, top = self.bytes_per_s, self.flop_per_s
        ridge = [top / slope] if slope and top else []
        if ridge:
            low, high = min(low, ridge[0] / 4), max(high, ridge[0] * 4)
        limits = {x: min(x * slope if slope else math.inf, top or math.inf) for x in sorted({low, *ridge, high})}
        return [{"intensity": x, "rate": y} for x, y in limits.items()]


@dataclass(frozen=True)
class RooflinePoint:
    """A case in a roofline."""

    line: Line
    intensity: float  # operations per byte of the minimum traffic
    flop_per_s: float
    peak_pct: float | None  # percent of the measured peak at that intensity; None if unknown


def roofline_point(line: Line) -> RooflinePoint | None:
    """Return the place of ``line`` in a roofline; None if its operations, traffic or time are not known."""
    flops, size, tflops = (finite(line.value(name)) for name in ("flops", "bytes_min", "tflops"))
    if not flops or not size or size < 1 or not tflops:
        return None
    peak_pct = finite(line.value("pct_of_measured_peak")) or 0.0
    return RooflinePoint(line, flops / size, tflops * 1e12, peak_pct if peak_pct > 1e-9 else None)


def peaks_of(points: Sequence[RooflinePoint]) -> Peaks:
    """Return the measured peaks of memory and of computing, of the cases that were compared with each.

    That of memory is the copy's rate at the most bytes: copies of fewer bytes depend on launching and on the L2 cache.
    """

    def peaks(bound: str, rate: str, factor: float) -> dict[float, float]:
        lines = [(point.line, point.peak_pct) for point in points if (point.line.value("bound") or "memory") == bound]
        known = [(line, percent) for line, percent in lines if percent and line.value(rate)]
        return {line.value("bytes_min") or 0.0: 100 * line.value(rate) * factor / percent for line, percent in known}

    memory, compute = peaks("memory", "gbps", 1e9), peaks("compute", "tflops", 1e12)
    return Peaks(memory[max(memory)] if memory else None, median(compute.values()) if compute else None)
