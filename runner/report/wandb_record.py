"""Record a finished run as an offline run of W&B. ``log=wandb`` starts this in a process of its own.

    python -m runner.report.wandb_record <folder> <into> <fields of Wandb as JSON> <why it is not uploaded, or "">

``Content`` computes what is shown from the rows; it does not need W&B.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from statistics import fmean
from typing import TYPE_CHECKING, Any

from runner.device import identity
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.report import conclusion, derive, past, to_html
from runner.report.derive import Line, Names
from runner.report.formats import columns, flat_records
from runner.report.wandb import NAME_LENGTH, NO_KEY, TAG_LENGTH, State, group_of, keep, state
from runner.store import journal, run_folder

if TYPE_CHECKING:
    import wandb

FIGURES = {"time_us": "time (us)", "speedup": "speed-up", "tflops": "TFLOP/s", "gbps": "GB/s"}  # charted, with titles
ROOFLINE = "roofline"
PAGE = "page"  # key of the page with all charts
PEAK = "measured peak"  # the line of the roofline that nothing can pass
RESULTS = (journal.NAME, "rows.csv", "table.md", run_folder.PLAN, run_folder.CONFIGS, run_folder.ENVIRONMENT)
MOST_NOTES = 2000  # characters
OFF = ("disable_git", "disable_code", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
# W&B records nothing about the machine, and prints nothing.
QUIET: dict[str, Any] = {"silent": True, "console": "off", "save_code": False, "x_save_requirements": False}
QUIET |= dict.fromkeys(OFF, True)


def main(folder: Path, into: Path, settings: dict[str, Any], offline: str) -> None:
    """Record the run in ``folder`` and write ``wandb.json``; W&B's files go ``into`` a folder.

    ``offline``: which setting forbids the upload; "" if none does. Then a run without an API key is not recorded, and
    one of another folder that the server has already is not recorded again.
    """
    earlier = state(folder)
    if not earlier.uploaded(folder):  # what was recorded is on no server
        earlier = State()
    try:
        import wandb
    except ImportError as error:
        found = replace(earlier, refused=f"wandb cannot be imported: {error}")
    else:
        run, why = past.read(folder), _no_credentials()
        if why == NO_KEY and not offline:
            found = replace(earlier, refused=NO_KEY)
        elif into != folder and not why and (url := on_server(run, settings)):
            found = State(url=url)
        else:
            wanted = not (offline or why or settings["per"] == "case")
            page = _page(run) if wanted else {}  # it takes 2 s, which an offline run need not wait for
            found = replace(record(run, into, settings, earlier, page), why=why)
        wandb.teardown()
    keep(into, found)


def record(run: past.Run, into: Path, settings: dict[str, Any], earlier: State, page: Mapping[str, Any]) -> State:
    """Record all rows of ``run`` offline, as one run of W&B, with ``page``, or one per case. Return what was done.

    A resumed sweep goes on ``earlier``: same id, later steps, and those records of the history that are new.

    Raises:
        wandb.Error, OSError: it cannot be written.

    """
    content = Content(run.rows, run.baseline, run.rounds)
    journal_bytes = (run.folder / journal.NAME).stat().st_size
    to = _Recorder(run, into, settings, earlier)
    per_case = settings["per"] == "case"
    recorded, history = _record_cases(to, content) if per_case else _record_sweep(to, content, page)
    if not recorded:  # no case has changed
        return replace(earlier, refused="", why="", journal_bytes=journal_bytes)
    sent = (*earlier.sent, *map(_digest, history))
    return State(recorded, journal_bytes=journal_bytes, step=earlier.step + len(history) + 2, sent=sent)


@dataclass(frozen=True)
class _Recorder:
    """Begins runs of W&B for a past run. The arguments are those of ``record``."""

    past: past.Run
    into: Path
    settings: dict[str, Any]
    earlier: State

    def begin(self, content: Content, notes: str | None = None, **own: Any) -> wandb.Run:
        """Begin a run of W&B that shows ``content``; ``own`` are arguments of ``wandb.init``.

        ``notes``: those if the user has none.
        """
        import wandb

        impls_and_workloads = [*content.workloads, *content.impls]
        tags = dict.fromkeys(tag[:TAG_LENGTH] for tag in [*self.settings["tags"], *impls_and_workloads])
        return wandb.init(
            mode="offline",
            dir=str(self.into),
            project=self.settings["project"],
            entity=self.settings["entity"],
            tags=list(tags),
            notes=self.settings["notes"] or notes,
            resume="allow",
            settings=wandb.Settings(**QUIET),
            **own,
        )

    def new(self, history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the records of ``history`` that no earlier session has recorded."""
        known = set(self.earlier.sent)
        return [dict(one) for one in history if _digest(one) not in known]

    def finish(self, run: wandb.Run, failed: bool) -> str:
        """End ``run`` and return its folder, relative to the one it is in."""
        recorded = Path(run.settings.sync_dir)
        run.finish(exit_code=1 if failed else 0)
        return str(recorded.resolve().relative_to(self.into.resolve()))


def _record_sweep(
    to: _Recorder, content: Content, page: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Record the whole sweep as one run. Return its folder and the new records of its history."""
    found = conclusion.conclude(to.past)
    run = to.begin(
        content,
        "\n".join([*(one.summary for one in found.findings), *found.failures])[:MOST_NOTES],
        id=id_of(to.past),
        name=to.past.name[:NAME_LENGTH],  # <date>/<time>-<name>: where the results are
        group=to.settings["group"],
        job_type=to.settings["job_type"] or "sweep",
        config=content.config(_head(to.past.folder), to.past.environment),
    )
    history = to.new([record for workload in content.workloads for record in content.history(workload)])
    history += to.new(content.roofline_history())
    _log(run, content, history, to.earlier.step, page)
    _log_files(run, to.past, to.past.rows, content.rows)
    failed = any(row.failed for row in content.rows)
    return (to.finish(run, failed),), history


def _record_cases(to: _Recorder, content: Content) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Record each case as a run of its own, in a group. Return their folders and the figures that are new."""
    recorded, history = [], []
    head = _head(to.past.folder)
    for line in content.lines:
        row = line.row
        figures = case_figures(line)
        if not to.new([{"case": row.case.key, **figures}]):
            continue
        history.append({"case": row.case.key, **figures})
        run = to.begin(
            Content([row], content.baseline),
            id=f"{id_of(to.past)}-{row.case.key}",
            name=content.names.case(row.case)[:NAME_LENGTH],
            group=group_of(to.past.folder, to.settings["group"]),
            job_type=to.settings["job_type"] or "case",
            config=case_config(line, content.names, head, to.past.environment),
        )
        run.log({name: value for name, value in figures.items() if _is_number(value)}, step=to.earlier.step)
        run.summary.update(figures)
        _log_files(run, to.past, [row], [row], results=False)
        recorded.append(to.finish(run, row.failed))
    return tuple(recorded), history


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def id_of(run: past.Run) -> str:
    """Return the id of a run at W&B: the same for every session of it, also after its folder was moved."""
    first = run.sessions[0] if run.sessions else {}
    facts = [run.folder.resolve().name, *(str(first.get(name)) for name in ("hostname", "started", "command"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def on_server(run: past.Run, settings: Mapping[str, Any]) -> str:
    """Return the address of ``run`` if the server has it with as many cases; "" if it has not, or does not answer."""
    import wandb

    try:
        api = wandb.Api(timeout=max(1, int(settings["timeout_s"] / 4)))
        entity = settings["entity"] or api.default_entity
        found = api.run(f"{entity}/{settings['project']}/{id_of(run)}")
        known = found.summary.get("cases/total") == len(run.lines)
        return str(found.url) if known and found.state == "finished" else ""
    except (wandb.Error, ValueError, TypeError):
        return ""


def _head(folder: Path) -> dict[str, Any]:
    """Return the settings of the run; {} for a journal alone."""
    try:
        return dict(run_folder.read_head(folder))
    except (OSError, ValueError):
        return {}


def _page(run: past.Run) -> dict[str, Any]:
    """Return the page of ``runner report html``, which has interactive charts with intervals; {} without vl-convert."""
    import wandb

    try:
        return {PAGE: wandb.Html(to_html.page([run]), inject=False)}
    except BadInput:
        return {}


def _log(
    run: wandb.Run, content: Content, history: Sequence[dict[str, Any]], step: int, more: Mapping[str, Any]
) -> None:
    """Log the table, the charts and ``more`` in one step, each record of the history in one, then the summary."""
    import wandb

    table = content.table()
    wandb.Table.MAX_ROWS = max(wandb.Table.MAX_ROWS, len(table["data"]))  # longer tables are cut without an error
    page: dict[str, Any] = {"rows": wandb.Table(**table), **more}
    run.define_metric(f"{ROOFLINE}/intensity", summary="none", hidden=True)
    run.define_metric(f"{ROOFLINE}/*", step_metric=f"{ROOFLINE}/intensity", step_sync=False, summary="none")
    if roofline := content.roofline():
        page[f"charts/{ROOFLINE}"] = _chart(roofline, "roofline: TFLOP/s over intensity", "flop/byte")
    for workload in content.workloads:
        x = content.x(workload)
        for figure, series in content.charts(workload).items():
            page[f"charts/{workload}/{figure}"] = _chart(series, content.title(workload, figure), x)
            # No summary: the last size says nothing about the sweep.
            run.define_metric(f"{workload}/{x}", summary="none", hidden=True)
            run.define_metric(f"{workload}/{figure}/*", step_metric=f"{workload}/{x}", step_sync=False, summary="none")
    run.log(page, step=step)
    for place, record in enumerate(history, step + 1):
        run.log(record, step=place)
    run.summary.update(content.summary())


def _chart(series: Series, title: str, xname: str) -> Any:
    import wandb

    points = [tuple(zip(*line, strict=True)) for line in series.values()]
    xs, ys = [list(xs) for xs, _ in points], [list(ys) for _, ys in points]
    return wandb.plot.line_series(xs=xs, ys=ys, keys=list(series), title=title, xname=xname)


def _log_files(
    run: wandb.Run, of: past.Run, rows: Sequence[Row], tabled: Sequence[Row], *, results: bool = True
) -> None:
    """Log the files of measurements as one artifact, and those that are tables as tables; the results as another."""
    import wandb

    if results:
        artifact = wandb.Artifact(f"results-{run.id}", type="results")
        for name in RESULTS:
            if path := run_folder.artifact(of.folder, name):
                artifact.add_file(str(path), name=name)
        if certificate := certificate_file(of.environment):
            artifact.add_file(str(certificate), name="certificate.json")
        run.log_artifact(artifact)
    if not (files := dict.fromkeys(artifacts(of.folder, rows))):
        return
    artifact = wandb.Artifact(f"files-{run.id}", type="measurements")
    for file in files:
        artifact.add_file(str(of.folder / file), name=file)
    run.log_artifact(artifact)
    run.log({name: wandb.Table(**table) for name, table in tables(of.folder, tabled).items()})


def certificate_file(environment: Mapping[str, Any]) -> Path | None:
    """Return the certificate of ``verify`` that the run was made with; None if it is not on this machine."""
    worker = environment.get("worker")
    taken = ((worker if isinstance(worker, dict) else {}).get("certificate") or {}).get("taken")
    if not taken:
        return None
    files = sorted(identity.cache_folder("certificate").glob("*.json"))
    return next((file for file in files if (identity.read_record(file) or {}).get("taken") == taken), None)


def _no_credentials() -> str:
    """Return why there is no usable API key; "" if there is one. This sends nothing to the server."""
    import wandb

    try:
        known = wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        return str(error)
    return "" if known else NO_KEY


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


def _cell(value: Scalar) -> Cell:
    """Return ``value`` as W&B can keep it."""
    return _finite(value) if isinstance(value, float) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    """Return ``value`` as a float; None for nan and inf, which JSON does not have."""
    return float(value) if _is_number(value) and math.isfinite(value) else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4])
