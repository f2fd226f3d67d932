"""What W&B shows of a run, computed from its rows. Nothing here needs W&B."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from statistics import fmean
from typing import Any

from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Comparison, Row
from runner.report import derive
from runner.report.derive import Line, Names
from runner.report.formats import columns, flat_records
from runner.store import run_folder

FIGURES = {"time_us": "time (us)", "speedup": "speed-up", "tflops": "TFLOP/s", "gbps": "GB/s"}  # charted, with titles
ROOFLINE = "roofline"
PEAK = "measured peak"  # the line of the roofline that nothing can pass

Cell = str | float | bool | None
Table = dict[str, Any]  # columns: names; data: rows of cells. The cells of a column have one type or are None
Series = dict[str, list[tuple[float, float]]]  # label of a chart's line → its points


class Content:
    """What a W&B run shows of ``rows``. ``baseline`` and ``rounds`` are those of ``derive.lines``."""

    def __init__(self, rows: Sequence[Row], baseline: str | None, rounds: Sequence[Comparison] = ()) -> None:
        self.baseline = baseline
        self.lines = derive.lines(rows, baseline, rounds)
        self.rows = [line.row for line in self.lines]
        self.names = Names([row.case for row in rows])
        self.workloads = list(self.names.axes)
        self.impls = list(dict.fromkeys(row.case.impl.name for row in rows))

    def table(self) -> Table:
        """Return one line per case, whatever its status."""
        records = flat_records(self.lines)
        return _table(records, columns(records), _one_type)

    def x(self, workload: str) -> str:
        """Return the first swept size of ``workload``, which its charts are over; "" if there is none."""
        return next((axis for axis, values in self._axes(workload).items() if all(map(is_number, values))), "")

    def title(self, workload: str, figure: str) -> str:
        """Return the title of a chart: ``gelu: time (us) (rows=8)``."""
        constants = ", ".join(f"{name}={value}" for name, value in self.names.constants[workload].items())
        return f"{workload}: {FIGURES[figure]} ({constants})"

    def charts(self, workload: str) -> dict[str, Series]:
        """Return the charts by figure: none if no size varies, and only figures that some row has."""
        x = self.x(workload)
        charts: dict[str, Series] = {figure: {} for figure in FIGURES}
        for line in self._lines(workload) if x else ():
            size = _finite(line.row.case.workload.fields[x])
            for figure in FIGURES:
                value = None if figure == "speedup" and line.baseline else _finite(getattr(line, figure))
                if size is not None and value is not None:
                    charts[figure].setdefault(self._series(line, x), []).append((size, value))
        return {
            figure: {label: sorted(points) for label, points in series.items()}
            for figure, series in charts.items()
            if series
        }

    def history(self, workload: str) -> list[dict[str, float]]:
        """Return the charts' points as one record per ``<workload>/<x>``, which W&B overlays across runs."""
        key = f"{workload}/{self.x(workload)}"
        records: dict[float, dict[str, float]] = {}
        for figure, series in self.charts(workload).items():
            for label, points in series.items():
                for x, y in points:
                    records.setdefault(x, {key: x})[f"{workload}/{figure}/{label}"] = y
        return [records[x] for x in sorted(records)]

    def roofline(self) -> Series:
        """Return TFLOP/s over intensity by ``<workload> <implementation>``, and the measured peak; {} without one."""
        found: Series = {}
        peak: dict[float, float] = {}
        for line in self.lines:
            intensity, tflops = _finite(_intensity(line.row)), _finite(line.tflops)
            if line.row.status == "ok" and intensity and tflops:
                label = f"{line.row.case.workload.name} {self.names.impl(line.row.case)}"
                found.setdefault(label, []).append((intensity, tflops))
                if percent := _finite(line.row.metrics.get("pct_of_measured_peak")):
                    peak[intensity] = 100 * tflops / percent
        if not peak:
            return {}
        return {label: sorted(points) for label, points in {**found, PEAK: list(peak.items())}.items()}

    def roofline_history(self) -> list[dict[str, float]]:
        """Return the points of the roofline as records: several cases may share an intensity."""
        key = f"{ROOFLINE}/intensity"
        return [{key: x, f"{ROOFLINE}/{label}": y} for label, points in self.roofline().items() for x, y in points]

    def summary(self) -> dict[str, Cell]:
        """Return flat keys: number of cases by status, the fastest of each problem, speed-ups, and these in short."""
        found: dict[str, Cell] = {f"cases/{status}": count for status, count in self._cases().items()}
        found["cases/failed"] = sum(row.failed for row in self.rows)
        fastest: dict[str, list[Line]] = {}
        for line in self.lines:
            case, label = line.row.case, self.names.impl(line.row.case)
            key = "/".join(filter(None, [case.workload.name, self._varying(case)]))
            if line.fastest != "no":
                fastest.setdefault(key, []).append(line)
            if line.speedup is not None and line.row.status == "ok":
                found[f"{key}/speedup/{label}"] = _finite(line.speedup)
        for key, some in fastest.items():  # several if they are tied
            found[f"{key}/fastest"] = ", ".join(self.names.impl(line.row.case) for line in some)
            found[f"{key}/fastest_us"] = _finite(min(line.time_us or 0.0 for line in some))
        if wins := self._wins(self.lines):
            found["fastest"] = wins.most_common(1)[0][0]
        return found | {key: value for workload in self.workloads for key, value in self._totals(workload).items()}

    def _totals(self, workload: str) -> dict[str, Cell]:
        """Return figures by implementation that sort runs: best time, mean speed-up, and how often it is fastest."""
        lines = self._lines(workload)
        found: dict[str, Cell] = {}
        for line in lines:
            if derive.may_win(line.row) and (time_us := _finite(line.time_us)):
                key = f"{workload}/best_us/{self.names.impl(line.row.case)}"
                best = found.get(key)
                found[key] = min(best, time_us) if isinstance(best, float) else time_us
        found |= {f"{workload}/geomean_speedup/{name}": value for name, value in self._geomeans(lines).items()}
        return found | {f"{workload}/fastest_in/{name}": count for name, count in self._wins(lines).items()}

    def _wins(self, lines: Sequence[Line]) -> Counter[str]:
        """Return in how many problems each implementation is the fastest, or tied for it."""
        return Counter(self.names.impl(line.row.case) for line in lines if line.fastest != "no")

    def _geomeans(self, lines: Sequence[Line]) -> dict[str, float]:
        """Return the geometric mean of the speed-ups of each implementation."""
        logs: dict[str, list[float]] = {}
        for line in lines:
            if line.row.status == "ok" and (speedup := _finite(line.speedup)):
                logs.setdefault(self.names.impl(line.row.case), []).append(math.log(speedup))
        return {name: math.exp(fmean(some)) for name, some in logs.items()}

    def config(self, run: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain dict: settings of the run, the machine, and what the grid holds."""
        workloads = {
            name: {"constants": self.names.constants[name], "axes": self._axes(name)} for name in self.workloads
        }
        grid = {"workloads": workloads, "cases": self._cases()}
        return {"run": dict(run), "environment": dict(environment), **grid, **_machine(self.rows, environment)}

    def _cases(self) -> dict[str, int]:
        """Return the number of cases, in total and by status."""
        return {"total": len(self.rows), **Counter(row.status for row in self.rows)}

    def _lines(self, workload: str) -> list[Line]:
        return [line for line in self.lines if line.row.case.workload.name == workload]

    def _axes(self, workload: str) -> dict[str, list[Any]]:
        """Return each swept field of ``workload`` with its values, in order of appearance."""
        fields = [line.row.case.workload.fields for line in self._lines(workload)]
        return {axis: list(dict.fromkeys(each[axis] for each in fields)) for axis in self.names.axes[workload]}

    def _varying(self, case: CaseRecord, without: str = "") -> str:
        """Return what varies, except ``without`` and the implementation: ``cols=1024, seed=1``."""
        return ", ".join(f"{name}={value}" for name, value in self.names.problem(case).items() if name != without)

    def _series(self, line: Line, x: str) -> str:
        """Return the label of the chart's line that this case is a point of: everything that varies except ``x``."""
        label = ", ".join(filter(None, [self.names.impl(line.row.case), self._varying(line.row.case, without=x)]))
        return label if line.row.status == "ok" else f"{label} ({line.row.status})"


def case_figures(line: Line) -> dict[str, Cell]:
    """Return the measured and derived figures of a case, flat, with its status."""
    row = line.row
    derived = ("time_us", "tflops", "gbps", "speedup", "speedup_low", "speedup_high", "vs_baseline", "fastest")
    figures: dict[str, Any] = {**row.metrics, **{name: line.value(name) for name in derived}}
    figures |= {"status": row.status, "reason": row.reason or None, "device": row.device or None}
    return {name: _cell(value) for name, value in figures.items() if _cell(value) is not None}


def case_config(line: Line, names: Names, head: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of one case as a plain dict, with the labels of the whole grid."""
    case = line.row.case
    labels = {"implementation": names.impl(case), "problem": names.heading(case), "key": case.key}
    chosen = {"workload": case.workload.to_record(), "impl": case.impl.to_record(), "settings": case.settings}
    return {
        **labels,
        **chosen,
        "run": dict(head),
        "environment": dict(environment),
        **_machine([line.row], environment),
    }


def _machine(rows: Sequence[Row], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what runs are filtered by: device, versions, commit."""
    packages = environment.get("packages")
    known = packages if isinstance(packages, dict) else {}
    devices = ", ".join(dict.fromkeys(row.device for row in rows if row.device))
    facts = {"device": devices, "torch": known.get("torch"), "triton": known.get("triton")}
    return facts | {name: environment.get(name) for name in ("commit", "dirty", "hostname")}


def _intensity(row: Row) -> float | None:
    """Return operations over the minimum traffic, in flop/byte."""
    flops, size = row.metrics.get("flops"), row.metrics.get("bytes_min")
    return float(flops) / float(size) if flops and size else None


def artifacts(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Return the files of ``rows`` that are in ``folder``. Those from workers on other machines may be missing."""
    return [file for row in rows for file in row.files if run_folder.artifact(folder, file)]


def tables(folder: Path, rows: Sequence[Row]) -> dict[str, Table]:
    """Return a table for each kind of CSV file, such as ``profile/kernels``; its lines begin with their case."""
    names = Names([row.case for row in rows])
    records: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        head = {"case": names.heading(row.case), "implementation": names.impl(row.case)}
        for file in artifacts(folder, [row]):
            path = PurePath(file)
            if path.suffix == ".csv":
                with open(folder / file, newline="", encoding="utf-8") as lines:
                    found = [head | line for line in csv.DictReader(lines)]
                records.setdefault(f"{path.parent.name}/{path.stem}", []).extend(found)
    return {
        name: _table(found, list(dict.fromkeys(column for line in found for column in line)), _numbers)
        for name, found in records.items()
        if found
    }


def _table(
    records: Sequence[Mapping[str, Any]], names: Sequence[str], convert: Callable[[list[Any]], list[Cell]]
) -> Table:
    cells = [convert([record.get(name) for record in records]) for name in names]
    return {"columns": list(names), "data": [list(row) for row in zip(*cells, strict=True)]}


def _one_type(values: list[Any]) -> list[Cell]:
    """Return ``values`` in one type, since W&B takes a column's type from its first row and refuses others."""
    known = [value for value in values if value is not None]
    if all(map(is_number, known)):
        return [_finite(value) for value in values]
    if all(isinstance(value, bool) for value in known):
        return values
    return [None if value is None else str(value) for value in values]


def _numbers(words: list[Any]) -> list[Cell]:
    """Return ``words`` as numbers if all of them are, with None for empty ones."""
    try:
        return [float(word) if word else None for word in words]
    except ValueError:
        return [word or None for word in words]


def _cell(value: Scalar) -> Cell:
    """Return ``value`` as W&B can keep it."""
    return _finite(value) if isinstance(value, float) else value


def is_number(value: object) -> bool:
    """Return whether ``value`` is a number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    """Return ``value`` as a float; None for nan and inf, which JSON does not have."""
    return float(value) if is_number(value) and math.isfinite(value) else None
