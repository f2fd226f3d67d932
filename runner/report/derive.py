"""What follows from rows: rates, speed-ups, who is fastest, and names as short as the grid allows.

A row holds what was measured; everything here can be worked out again from rows at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


class Names:
    """Labels that tell the cases of one grid apart, and say nothing that is the same for all."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._impl = _varying(case.impl for case in cases)
        varying = _varying(case.workload for case in cases)
        chosen: dict[str, list[Choice]] = {}
        for case in cases:
            chosen.setdefault(case.workload.name, []).append(case.workload)
        self._axes = {name: _axes(some, varying[name]) for name, some in chosen.items()}
        self._constants = {
            name: {key: value for key, value in some[0].fields.items() if key not in varying[name]}
            for name, some in chosen.items()
        }

    def impl(self, case: Case) -> str:
        """``compiled``, or ``compiled(mode=default)`` where the grid has several."""
        shown = [f"{name}={value}" for name, value in case.impl.fields.items() if name in self._impl[case.impl.name]]
        return f"{case.impl.name}({', '.join(shown)})" if shown else case.impl.name

    def axes(self, workload: str) -> list[str]:
        """The fields of ``workload`` that vary over the grid, in the order of its class."""
        return self._axes[workload]

    def constants(self, workload: str) -> dict[str, Scalar]:
        """The fields that do not, with their one value."""
        return self._constants[workload]


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


def _axes(chosen: Sequence[Choice], varying: set[str]) -> list[str]:
    """The varying fields that are not merely copies of an earlier one, as m, n and k are of size."""
    series = {name: [choice.fields[name] for choice in chosen] for name in chosen[0].fields if name in varying}
    names = list(series)
    return [name for i, name in enumerate(names) if series[name] not in [series[earlier] for earlier in names[:i]]]
