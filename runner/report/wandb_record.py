"""Record a finished run as an offline run of W&B. ``log=wandb`` starts this in a process of its own.

    python -m runner.report.wandb_record <folder> <into> <fields of Wandb as JSON> <why it is not uploaded, or "">

Without W&B, ``runner.report.wandb_content`` computes what is shown.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.device import identity
from runner.experiment.results import Row
from runner.experiment.schema import BadInput
from runner.report import conclusion, derive, past, to_html
from runner.report.wandb import NAME_LENGTH, NO_KEY, TAG_LENGTH, State, group_of, keep, state
from runner.report.wandb_content import (
    ROOFLINE,
    Content,
    Series,
    artifacts,
    case_config,
    case_figures,
    is_number,
    tables,
)
from runner.store import journal, run_folder

if TYPE_CHECKING:
    import wandb

PAGE = "page"  # key of the page with all charts
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


def record(run: derive.Run, into: Path, settings: dict[str, Any], earlier: State, page: Mapping[str, Any]) -> State:
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

    past: derive.Run
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
        "\n".join([*found.answers, *(one.summary for one in found.findings), *found.failures])[:MOST_NOTES],
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
        run.log({name: value for name, value in figures.items() if is_number(value)}, step=to.earlier.step)
        run.summary.update(figures)
        _log_files(run, to.past, [row], [row], results=False)
        recorded.append(to.finish(run, row.failed))
    return tuple(recorded), history


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def id_of(run: derive.Run) -> str:
    """Return the id of a run at W&B: the same for every session of it, also after its folder was moved."""
    first = run.sessions[0] if run.sessions else {}
    facts = [run.folder.resolve().name, *(str(first.get(name)) for name in ("hostname", "started", "command"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def on_server(run: derive.Run, settings: Mapping[str, Any]) -> str:
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


def _page(run: derive.Run) -> dict[str, Any]:
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
    run: wandb.Run, of: derive.Run, rows: Sequence[Row], tabled: Sequence[Row], *, results: bool = True
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4])
