"""What W&B shows of a run, computed from its rows. Nothing here needs W&B."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from ...findings.chart_data import part, roofline_point, swept
from ...findings.flat import column_names, flat_records
from ...findings.kept_files import kept_files, read_csv
from ...findings.lines import WINS, Line
from ...findings.names import Names
from ...findings.run import Run
from ...findings.validity import may_win
from ...measure.columns import column_of, known_columns
from ...records.case import Scalar
from ...records.columns import DERIVED
from ...records.figures import as_words, finite, is_number
from ...records.grouping import grouped
from ...records.row import Row
from ...records.untrusted import mapping
from ...store import run_folder
from ..flat_formats import uniform

ROOFLINE = "roofline"
PEAK = "measured peak"  # the line of the roofline that nothing can pass

Cell = str | float | bool | None
Table = dict[str, Any]  # columns: names; data: rows of cells. The cells of a column have one type or are None
Series = dict[str, list[tuple[float, float]]]  # label of a chart's line → its points


class Content:
    """What a W&B run shows of ``run``."""

    def __init__(self, run: Run) -> None:
        self.run, self.lines = run, run.lines
        self.rows = [line.row for line in self.lines]
        self.names = Names([row.case for row in self.rows])
        self.workloads = list(self.names.axes)

    def table(self) -> Table:
        """Return one line per case, whatever its status."""
        records = flat_records(self.lines)
        return _table(records, column_names(records))

    def x(self, workload: str) -> str:
        """Return the swept size of ``workload``, which its charts are over; "" if there is none."""
        return swept([line.case for line in self._lines(workload)], self.names)

    def title(self, workload: str, figure: str) -> str:
        """Return the title of a chart: ``gelu: time (us) (rows=8)``."""
        constants = ", ".join(as_words(self.names.constants[workload]))
        return f"{workload}: {column_of(figure).axis} ({constants})"

    def charts(self, workload: str) -> dict[str, Series]:
        """Return the charts by column: none if no size varies, and only columns that some row has."""
        x = self.x(workload)
        charts: dict[str, Series] = {}
        charted = [name for name, column in known_columns().items() if column.charted]
        for figure, line in product(charted, self._lines(workload) if x else ()):
            size = finite(line.case.workload.fields[x])
            value = None if figure == "speedup" and line.baseline else finite(line.value(figure))
            if size is not None and value is not None:
                charts.setdefault(figure, {}).setdefault(self._series(line, x), []).append((size, value))
        return {figure: {label: sorted(xys) for label, xys in series.items()} for figure, series in charts.items()}

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
        series: Series = {}
        peak: dict[float, float] = {}
        for point in filter(None, (roofline_point(line) for line in self.lines if line.row.status == "ok")):
            case, tflops = point.line.case, point.flop_per_s / 1e12
            label = f"{case.workload.name} {self.names.impl(case)}"
            series.setdefault(label, []).append((point.intensity, tflops))
            if point.peak_pct:
                peak[point.intensity] = tflops * 100 / point.peak_pct
        series[PEAK] = list(peak.items())
        return {label: sorted(points) for label, points in series.items()} if peak else {}

    def roofline_history(self) -> list[dict[str, float]]:
        """Return the points of the roofline as records: several cases may share an intensity."""
        key = f"{ROOFLINE}/intensity"
        return [{key: x, f"{ROOFLINE}/{label}": y} for label, points in self.roofline().items() for x, y in points]

    def summary(self) -> dict[str, Cell]:
        """Return flat keys: number of cases by status, the fastest of each problem, speed-ups, and these in short."""
        figures: dict[str, Cell] = {f"cases/{status}": count for status, count in self._cases().items()}
        figures["cases/failed"] = sum(row.failed for row in self.rows)
        for key, lines in grouped(self.lines, self._problem).items():
            for line in lines:
                if line.speedup is not None and line.row.status == "ok":
                    figures[f"{key}/speedup/{self.names.impl(line.case)}"] = finite(line.speedup)
            if fastest := [line for line in lines if line.fastest in (*WINS, "only")]:  # several if they are tied
                figures[f"{key}/fastest"] = ", ".join(self.names.impl(line.case) for line in fastest)
                figures[f"{key}/fastest_us"] = finite(min(line.time_us or 0.0 for line in fastest))
        if wins := self._wins(self.lines):
            figures["fastest"] = wins.most_common(1)[0][0]
        return figures | {key: value for workload in self.workloads for key, value in self._totals(workload).items()}

    def _problem(self, line: Line) -> str:
        return "/".join(filter(None, [line.case.workload.name, part(line.case, self.names, "", ", ")]))

    def _totals(self, workload: str) -> dict[str, Cell]:
        """Return figures by implementation that sort runs: best time, mean speed-up, and how often it is fastest."""
        figures: dict[str, Cell] = {}
        lines = self._lines(workload)
        for name, members in grouped(lines, lambda line: self.names.impl(line.case)).items():
            times = [us for line in members if may_win(line.row) and (us := finite(line.time_us))]
            speedups = [ratio for line in members if line.row.status == "ok" and (ratio := finite(line.speedup))]
            figures |= {f"{workload}/best_us/{name}": min(times)} if times else {}
            figures |= {f"{workload}/geomean_speedup/{name}": geometric_mean(speedups)} if speedups else {}
        return figures | {f"{workload}/fastest_in/{name}": count for name, count in self._wins(lines).items()}

    def _wins(self, lines: Sequence[Line]) -> Counter[str]:
        """Return in how many problems each implementation is the fastest, or tied for it."""
        return Counter(self.names.impl(line.case) for line in lines if line.fastest in WINS)

    def config(self) -> dict[str, Any]:
        """Return a plain dict: settings of the run, the machine, and what the grid holds."""
        constants = self.names.constants
        workloads = {name: {"constants": constants[name], "axes": self._axes(name)} for name in self.workloads}
        return {**self._of_run(self.rows), "workloads": workloads, "cases": self._cases()}

    def case_config(self, line: Line) -> dict[str, Any]:
        """Return the configuration of one case as a plain dict, with the labels of the whole grid."""
        case = line.case
        labels = {"implementation": self.names.impl(case), "problem": self.names.heading(case), "case": case.key}
        chosen = {"workload": case.workload.to_record(), "impl": case.impl.to_record(), "settings": case.flat_settings}
        return {**labels, **chosen, **self._of_run([line.row])}

    def _of_run(self, rows: Sequence[Row]) -> dict[str, Any]:
        environment = self.run.environment
        settings = {"run": run_folder.plan_settings(self.run.plan), "environment": dict(environment)}
        return settings | machine(rows, environment)

    def _cases(self) -> dict[str, int]:
        return {"total": len(self.rows), **Counter(row.status for row in self.rows)}

    def _lines(self, workload: str) -> list[Line]:
        return [line for line in self.lines if line.case.workload.name == workload]

    def _axes(self, workload: str) -> dict[str, list[Any]]:
        """Return each swept field of ``workload`` with its values, in order of appearance."""
        fields = [line.case.workload.fields for line in self._lines(workload)]
        return {axis: list(dict.fromkeys(each[axis] for each in fields)) for axis in self.names.axes[workload]}

    def _series(self, line: Line, x: str) -> str:
        """Return the label of the chart's line that this case is a point of: everything that varies except ``x``."""
        label = ", ".join(filter(None, [self.names.impl(line.case), part(line.case, self.names, x, ", ")]))
        return label if line.row.status == "ok" else f"{label} ({line.row.status})"


def case_figures(line: Line) -> dict[str, Cell]:
    """Return the measured and derived figures of a case, flat, with its status."""
    row = line.row
    figures: dict[str, Any] = {**row.metrics, **{name: line.value(name) for name in DERIVED}}
    figures |= {"status": row.status, "reason": row.reason or None, "device": row.device or None}
    return {name: cell for name, value in figures.items() if (cell := _cell(value)) is not None}


def machine(rows: Sequence[Row], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts by which runs are filtered: device, versions, commit."""
    known = mapping(environment.get("packages"))
    devices = ", ".join(dict.fromkeys(row.device for row in rows if row.device))
    facts = {"device": devices, "torch": known.get("torch"), "triton": known.get("triton")}
    return facts | {name: environment.get(name) for name in ("commit", "dirty", "hostname")}


def artifact_tables(folder: Path, rows: Sequence[Row]) -> dict[str, Table]:
    """Return a table for each kind of CSV file, such as ``profile/kernels``; its lines begin with their case."""
    names = Names([row.case for row in rows])
    records: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        head = {"case": names.heading(row.case), "implementation": names.impl(row.case)}
        for name, path in kept_files(folder, row, "*.csv").items():
            records.setdefault(f"{name.parent.name}/{name.stem}", []).extend(head | line for line in read_csv(path))
    return {
        name: _table(lines, list(dict.fromkeys(column for line in lines for column in line)))
        for name, lines in records.items()
        if lines
    }


def _table(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    """Return a table whose columns have one type: W&B takes a column's type from its first row and refuses others."""
    columns = [uniform([record.get(name) for record in records]) for name in names]
    cells = [[finite(value) if is_number(value) else value for value in column] for column in columns]
    return {"columns": list(names), "data": [list(row) for row in zip(*cells, strict=True)]}


def _cell(value: Scalar) -> Cell:
    """Return ``value`` as W&B can keep it."""
    return finite(value) if isinstance(value, float) else value
