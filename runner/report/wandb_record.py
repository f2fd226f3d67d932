"""Record a finished run as an offline run of W&B. ``log=wandb`` starts this in a process of its own.

    python -m runner.report.wandb_record <folder> <fields of Wandb as JSON>

``Content`` computes what is shown from the rows; it does not need W&B.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row
from runner.report import derive
from runner.report.derive import Line, Names
from runner.report.frame import columns, flat_records
from runner.report.wandb import STATE, TAG_LENGTH
from runner.store import journal, run_folder

if TYPE_CHECKING:
    import wandb

FIGURES = {"time_us": "time (us)", "tflops": "TFLOP/s", "gbps": "GB/s"}  # charted figures with their titles
NAME_LENGTH = 128
OFF = ("disable_git", "disable_code", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
# W&B records nothing about the machine, and prints nothing.
QUIET: dict[str, Any] = {"silent": True, "console": "off", "save_code": False, "x_save_requirements": False}
QUIET |= dict.fromkeys(OFF, True)


def main(folder: Path, settings: dict[str, Any]) -> None:
    """Record the run in ``folder``. Write ``wandb.json``: the folder that W&B recorded in, and why not to upload it."""
    try:
        import wandb
    except ImportError as error:
        state = {"recorded": None, "why": f"wandb cannot be imported: {error}"}
    else:
        recorded = record(folder, settings)
        wandb.teardown()
        state = {"recorded": recorded, "why": _no_credentials()}
    (folder / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")


def record(folder: Path, settings: dict[str, Any]) -> str:
    """Record all rows in ``folder`` as one offline run. Return the folder that W&B keeps it in.

    Raises:
        wandb.Error, OSError: it cannot be written.

    """
    import wandb

    plan = run_folder.read_head(folder)
    contents = journal.load(folder)
    content = Content(list(contents.rows.values()), plan["baseline"], contents.rounds)
    tags = dict.fromkeys(tag[:TAG_LENGTH] for tag in [*settings["tags"], *content.workloads, *content.impls])
    environment = json.loads((folder / run_folder.ENVIRONMENT).read_text(encoding="utf-8"))
    run = wandb.init(
        mode="offline",
        dir=str(folder),
        project=settings["project"],
        entity=settings["entity"],
        group=settings["group"],
        name=f"{folder.parent.name}/{folder.name}"[:NAME_LENGTH],  # <date>/<time>-<name>: where the results are
        job_type="sweep",
        tags=list(tags),
        config=content.config(plan, environment),
        settings=wandb.Settings(**QUIET),
    )
    _log(run, content)
    _log_files(run, folder, content.rows)
    recorded = str(Path(run.settings.sync_dir))
    run.finish(exit_code=1 if any(row.failed for row in content.rows) else 0)
    return recorded


def _log(run: wandb.Run, content: Content) -> None:
    """Log the table and the charts in the first step, then one step per size, then the summary."""
    import wandb

    table = content.table()
    wandb.Table.MAX_ROWS = max(wandb.Table.MAX_ROWS, len(table["data"]))  # longer tables are cut without an error
    page: dict[str, Any] = {"rows": wandb.Table(**table)}
    for workload in content.workloads:
        x = content.x(workload)
        for figure, series in content.charts(workload).items():
            points = [tuple(zip(*line, strict=True)) for line in series.values()]
            page[f"charts/{workload}/{figure}"] = wandb.plot.line_series(
                xs=[list(xs) for xs, _ in points],
                ys=[list(ys) for _, ys in points],
                keys=list(series),
                title=content.title(workload, figure),
                xname=x,
            )
            # No summary: the last size says nothing about the sweep.
            run.define_metric(f"{workload}/{x}", summary="none", hidden=True)
            run.define_metric(f"{workload}/{figure}/*", step_metric=f"{workload}/{x}", step_sync=False, summary="none")
    run.log(page)
    for workload in content.workloads:
        for step in content.history(workload):
            run.log(step)
    run.summary.update(content.summary())


def _log_files(run: wandb.Run, folder: Path, rows: Sequence[Row]) -> None:
    """Log the files of measurements as one artifact, and those that are tables as tables."""
    import wandb

    if not (files := artifacts(folder, rows)):
        return
    artifact = wandb.Artifact(f"files-{run.id}", type="measurements")
    for file in files:
        artifact.add_file(str(folder / file), name=file)
    run.log_artifact(artifact)
    run.log({name: wandb.Table(**table) for name, table in tables(folder, rows).items()})


def _no_credentials() -> str:
    """Return why there is no usable API key; "" if there is one. This sends nothing to the server."""
    import wandb

    try:
        known = wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        return str(error)
    return "" if known else "no API key"


Cell = str | float | bool | None
Table = dict[str, Any]  # columns: names; data: rows of cells. The cells of a column have one type or are None
Series = dict[str, list[tuple[float, float]]]  # label of a chart's line → its points


class Content:
    """What a W&B run shows of ``rows``. ``baseline`` and ``rounds`` are those of ``derive.lines``."""

    def __init__(self, rows: Sequence[Row], baseline: str | None, rounds: Sequence[Comparison] = ()) -> None:
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
        return next((axis for axis, values in self._axes(workload).items() if all(map(_is_number, values))), "")

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
                value = _finite(getattr(line, figure))
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

    def summary(self) -> dict[str, Cell]:
        """Return flat keys: number of cases by status, the fastest of each problem, and speed-ups."""
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
        return found

    def config(self, run: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain dict: settings of the run, the machine, and what the grid holds."""
        workloads = {
            name: {"constants": self.names.constants[name], "axes": self._axes(name)} for name in self.workloads
        }
        return {"run": dict(run), "environment": dict(environment), "workloads": workloads, "cases": self._cases()}

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
    if all(map(_is_number, known)):
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    """Return ``value`` as a float; None for nan and inf, which JSON does not have."""
    return float(value) if _is_number(value) and math.isfinite(value) else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
