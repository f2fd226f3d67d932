"""What a W&B run says of a sweep, worked out from its rows: table, line charts, summary, config. Knows no W&B."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row
from runner.report import derive
from runner.report.derive import Line, Names
from runner.report.frame import columns, flat

Cell = str | float | bool | None

FIGURES = {"time_us": "time (us)", "tflops": "TFLOP/s", "gbps": "GB/s"}  # what is charted, and how it is titled


@dataclass(frozen=True)
class Table:
    """Columns of one type each: text, float or bool, with None where a row has no value."""

    columns: list[str]
    data: list[list[Cell]]


@dataclass
class Chart:
    """One figure of one workload against ``x``, its first swept size: label of a line → its problems, by x."""

    title: str
    x: str
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


class Content:
    """Rows seen as a W&B run. ``baseline``: what speed-ups are against, as in ``derive.lines``."""

    def __init__(self, rows: Sequence[Row], baseline: str | None, rounds: Sequence[Comparison] = ()) -> None:
        cases = [row.case for row in rows]
        self.lines = derive.lines(rows, baseline, rounds)
        self.rows = [line.row for line in self.lines]
        self.names = Names(cases)
        self.workloads = list(dict.fromkeys(case.workload.name for case in cases))
        self.impls = list(dict.fromkeys(case.impl.name for case in cases))
        self._axes = {name: self._swept(name) for name in self.workloads}

    def table(self) -> Table:
        """A line per case, whatever became of it."""
        records = [flat(line, self.names) for line in self.lines]
        names = columns(records)
        typed = [_one_type([record.get(name) for record in records]) for name in names]
        return Table(names, [list(cells) for cells in zip(*typed, strict=True)])

    def charts(self, workload: str) -> dict[str, Chart]:
        """By figure; none where no size varies, and only those figures that some row has."""
        x = next((axis for axis, values in self._axes[workload].items() if all(map(_is_number, values))), None)
        if x is None:
            return {}
        constants = ", ".join(f"{name}={value}" for name, value in self.names.constants(workload).items())
        charts = {figure: Chart(f"{workload}: {title} ({constants})", x) for figure, title in FIGURES.items()}
        for line in self._of(workload):
            at = _finite(line.row.case.workload.fields[x])
            for figure, chart in charts.items():
                value = _figure(line, figure)
                if at is not None and value is not None:
                    chart.series.setdefault(self._series(line, x), []).append((at, value))
        for chart in charts.values():
            chart.series = {label: sorted(problems) for label, problems in chart.series.items()}
        return {figure: chart for figure, chart in charts.items() if chart.series}

    def history(self, workload: str) -> list[dict[str, float]]:
        """The charts' problems again, one record per ``<workload>/<x>``: what W&B overlays across runs."""
        records: dict[float, dict[str, float]] = {}
        for figure, chart in self.charts(workload).items():
            for label, problems in chart.series.items():
                for at, value in problems:
                    records.setdefault(at, {f"{workload}/{chart.x}": at})[f"{workload}/{figure}/{label}"] = value
        return [records[at] for at in sorted(records)]

    def summary(self) -> dict[str, Cell]:
        """Flat keys: who is fastest at each problem, the speed-up of each implementation, how many cases went how."""
        flat: dict[str, Cell] = {"cases/total": len(self.rows)}
        flat |= {f"cases/{status}": count for status, count in self._statuses().items()}
        flat["cases/failed"] = sum(row.failed for row in self.rows)
        for line in self.lines:
            key, label = self._problem(line.row.case), self.names.impl(line.row.case)
            if line.fastest == "yes":
                flat |= {f"{key}/fastest": label, f"{key}/fastest_us": _figure(line, "time_us")}
            if line.speedup is not None and line.row.status == "ok":  # of a wrong result nobody asks how fast it came
                flat[f"{key}/speedup/{label}"] = _finite(line.speedup)
        return flat

    def config(self, run: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """A plain dict: the run's settings, the machine, and what the grid held."""
        workloads = {
            name: {"constants": self.names.constants(name), "axes": self._axes[name]} for name in self.workloads
        }
        cases = {"total": len(self.rows), **self._statuses()}
        return {"run": dict(run), "environment": dict(environment), "workloads": workloads, "cases": cases}

    def _statuses(self) -> Counter[str]:
        return Counter(row.status for row in self.rows)

    def _of(self, workload: str) -> list[Line]:
        return [line for line in self.lines if line.row.case.workload.name == workload]

    def _swept(self, workload: str) -> dict[str, list[Any]]:
        """Each swept field of ``workload`` with its values, in order of appearance."""
        fields = [line.row.case.workload.fields for line in self._of(workload)]
        return {axis: list(dict.fromkeys(some[axis] for some in fields)) for axis in self.names.axes(workload)}

    def _problem(self, case: CaseRecord, without: str = "") -> str:
        """``gelu/cols=1024``: the workload and what varies, but for ``without``."""
        told = [f"{name}={value}" for name, value in self.names.problem(case).items() if name != without]
        return "/".join([case.workload.name, ", ".join(told)]).rstrip("/")

    def _series(self, line: Line, x: str) -> str:
        """The label of the chart line this row is a problem of: all that varies beside ``x``."""
        case = line.row.case
        others = self._problem(case, without=x).removeprefix(case.workload.name).removeprefix("/")
        label = ", ".join(filter(None, [self.names.impl(case), others]))
        return label if line.row.status == "ok" else f"{label} ({line.row.status})"


def _figure(line: Line, name: str) -> float | None:
    return _finite(line.row.time_us if name == "time_us" else getattr(line, name))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    """As a float; None for what JSON has no number for."""
    return float(value) if _is_number(value) and math.isfinite(value) else None


def _one_type(values: Sequence[Any]) -> list[Cell]:
    """``values`` with one type, for a W&B column takes its type from its first row and refuses others."""
    known = [value for value in values if value is not None]
    if all(map(_is_number, known)):
        return [_finite(value) for value in values]
    if all(isinstance(value, bool) for value in known):
        return list(values)
    return [None if value is None else str(value) for value in values]


def kept(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Names of the files that are here: those of another machine's workers may not be."""
    return [file for row in rows for file in row.files if (folder / file).is_file()]


def tables(folder: Path, rows: Sequence[Row]) -> Mapping[str, Table]:
    """``profile/kernels`` → the lines of that file of every case, with the case before each."""
    names = Names([row.case for row in rows])
    records: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        head = {"case": names.heading(row.case), "implementation": names.impl(row.case)}
        for file in kept(folder, [row]):
            path = PurePath(file)
            if path.suffix == ".csv":
                with open(folder / file, newline="", encoding="utf-8") as lines:
                    some = [head | line for line in csv.DictReader(lines)]
                records.setdefault(f"{path.parent.name}/{path.stem}", []).extend(some)
    return {name: _table(some) for name, some in records.items() if some}


def _table(records: Sequence[Mapping[str, str]]) -> Table:
    names = list(dict.fromkeys(name for record in records for name in record))
    typed = [_typed([record.get(name) or None for record in records]) for name in names]
    return Table(names, [list(cells) for cells in zip(*typed, strict=True)])


def _typed(words: Sequence[str | None]) -> list[Cell]:
    """Numbers if all of them are."""
    try:
        return [None if word is None else float(word) for word in words]
    except ValueError:
        return list(words)
