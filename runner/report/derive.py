"""What follows from rows: rates, speed-ups, who is fastest, and names as short as the grid allows.

A row holds what was measured; everything here can be worked out again from rows at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.case import Case, Choice, Scalar
from runner.row import Row


@dataclass(frozen=True)
class Line:
    """A row and what follows from it beside the other rows of its point."""

    row: Row
    tflops: float | None  # of the workload's own operations, in 10^12 a second
    gbps: float | None  # of the bytes that must move, in 10^9 a second
    speedup: float | None  # baseline's time over this one's
    fastest: bool  # among the right ones of its point
    baseline: bool


@dataclass
class Names:
    """Labels that tell the cases of one grid apart, and say nothing that is the same for all."""

    cases: Sequence[Case]
    _impl: dict[str, set[str]] = field(init=False)
    _workload: dict[str, set[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._impl = _varying(case.impl for case in self.cases)
        self._workload = _varying(case.workload for case in self.cases)

    def impl(self, case: Case) -> str:
        """``compiled``, or ``compiled(mode=default)`` where the grid has several."""
        shown = [f"{name}={value}" for name, value in case.impl.fields.items() if name in self._impl[case.impl.name]]
        return f"{case.impl.name}({', '.join(shown)})" if shown else case.impl.name

    def axes(self, workload: str) -> list[str]:
        """The fields of ``workload`` that vary over the grid, in the order of its YAML."""
        series: dict[str, list[Any]] = {}
        for case in self.cases:
            if case.workload.name == workload:
                for name in self._workload[workload]:
                    series.setdefault(name, []).append(case.workload.fields[name])
        fields = [name for name in self._fields(workload) if name in series]
        # m, n and k that follow size in every case say nothing that size does not say.
        return [name for i, name in enumerate(fields) if series[name] not in [series[f] for f in fields[:i]]]

    def constants(self, workload: str) -> dict[str, Any]:
        """The other fields, with their one value."""
        fields = self._fields(workload)
        return {name: value for name, value in fields.items() if name not in self._workload[workload]}

    def _fields(self, workload: str) -> Mapping[str, Scalar]:
        return next(case.workload.fields for case in self.cases if case.workload.name == workload)


def lines(rows: Iterable[Row], baseline: str | None) -> list[Line]:
    """Every row with its rates and its place among those of its point, the points in order of appearance."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        points.setdefault(row.case.point, []).append(row)
    return [line for point in points.values() for line in _point(point, baseline)]


def _point(rows: Sequence[Row], baseline: str | None) -> list[Line]:
    timed = [row for row in rows if row.time_us is not None]
    right = [row for row in timed if row.status == "ok"]
    fastest = min(right, key=lambda row: row.time_us or 0.0, default=None)
    reference = _baseline(timed, baseline)
    return [
        Line(
            row=row,
            tflops=_rate(row, "flops", 1e-6),
            gbps=_rate(row, "bytes_min", 1e-3),
            speedup=reference.time_us / row.time_us if reference and reference.time_us and row.time_us else None,
            fastest=row is fastest,
            baseline=row is reference,
        )
        for row in rows
    ]


def _baseline(timed: Sequence[Row], name: str | None) -> Row | None:
    """The row speed-ups are against: the one asked for, else ``torch``, else the first."""
    for row in timed:
        if row.case.impl.name == (name or "torch"):
            return row
    return None if name else next(iter(timed), None)


def _rate(row: Row, column: str, scale: float) -> float | None:
    """``column`` a microsecond, times ``scale``."""
    amount = row.metrics.get(column)
    return float(amount) / row.time_us * scale if amount is not None and row.time_us else None


def _varying(chosen: Iterable[Choice]) -> dict[str, set[str]]:
    """For each option, the fields that take several values."""
    values: dict[str, dict[str, set[Any]]] = {}
    for choice in chosen:
        seen = values.setdefault(choice.name, {})
        for name, value in choice.fields.items():
            seen.setdefault(name, set()).add(value)
    return {option: {name for name, some in seen.items() if len(some) > 1} for option, seen in values.items()}
