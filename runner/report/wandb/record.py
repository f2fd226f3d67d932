"""Record a finished run as an offline run of W&B. ``log=wandb`` starts this in a process of its own.

    python -m runner.report.wandb.record <folder> <into> <fields of Wandb as JSON> <why it is not uploaded, or "">

Without W&B, ``runner.report.wandb.content`` computes what is shown.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import wandb

from ...device import cache
from ...findings.conclusion import conclude
from ...findings.kept_files import kept_files
from ...findings.lines import Line
from ...findings.past import read_run
from ...findings.run import Run
from ...records.bad_input import BadInput
from ...records.figures import is_number
from ...records.redaction import redact, redact_values
from ...records.row import Row
from ...records.untrusted import mapping
from ...store import journal, run_folder
from .. import to_html
from ..output import ROWS, TABLE
from .client import NO_KEY
from .content import ROOFLINE, Content, Series, artifact_tables, case_figures
from .state import NAME_LENGTH, TAG_LENGTH, State, group_of, read_state, write_state

PAGE = "page"  # key of the page with all charts
RESULTS = (journal.NAME, ROWS, TABLE, run_folder.PLAN, run_folder.CONFIGS, run_folder.ENVIRONMENT)
MOST_NOTES = 2000  # characters
OFF = ("disable_git", "disable_code", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
# W&B records nothing about the machine, and prints nothing.
QUIET: dict[str, Any] = {"silent": True, "console": "off", "save_code": False, "x_save_requirements": False}
QUIET |= dict.fromkeys(OFF, True)


def main(folder: Path, into: Path, settings: SimpleNamespace, offline: str) -> None:
    """Record the run in ``folder`` and write ``wandb.json``; W&B's files go ``into`` a folder.

    ``offline``: which setting forbids the upload; "" if none does. Then a run without an API key is not recorded, and
    one of another folder that the server has already is not recorded again.
    """
    earlier = read_state(folder)
    if not earlier.uploaded(folder):  # what was recorded is on no server
        earlier = State()
    run, reason = read_run(folder), _no_credentials()
    if reason == NO_KEY and not offline:
        state = replace(earlier, refused=NO_KEY)
    elif into != folder and not reason and (url := on_server(run, settings)):
        state = State(url=url)
    else:
        wanted = not (offline or reason or settings.per == "case")
        page = _page(run) if wanted else {}  # it takes 2 s, which an offline run need not wait for
        state = replace(_Recorder(Content(run), into, settings, earlier).record(page), why=reason)
    wandb.teardown()
    write_state(into, state)


@dataclass(frozen=True)
class _Recorder:
    """Records the rows of a past run offline, as one run of W&B or one per case; W&B's files go ``into`` a folder.

    A resumed sweep continues ``earlier``: it has the same id, later steps, and the new records of the history alone.
    """

    content: Content
    into: Path
    settings: SimpleNamespace  # the fields of Wandb
    earlier: State

    def record(self, page: Mapping[str, Any]) -> State:
        """Record what is new, a sweep with its ``page``, and return what was done. Raises wandb.Error, OSError."""
        journal_bytes = (self.content.run.folder / journal.NAME).stat().st_size
        recorded, history = self._record_cases() if self.settings.per == "case" else self._record_sweep(page)
        if not recorded:  # no case has changed
            return replace(self.earlier, refused="", why="", journal_bytes=journal_bytes)
        sent = (*self.earlier.sent, *map(_digest, history))
        step = self.earlier.step + len(history) + 2
        return State(tuple(recorded), journal_bytes=journal_bytes, step=step, sent=sent)

    def _record_sweep(self, page: Mapping[str, Any]) -> tuple[Sequence[str], list[dict[str, Any]]]:
        """Record the whole sweep as one run. Return its folder and the new records of its history."""
        past, content = self.content.run, self.content
        conclusion = conclude(past)
        sentences = [*conclusion.answers, *(each.summary for each in conclusion.findings), *conclusion.failures]
        run = self._begin(
            content.lines,
            "\n".join(sentences)[:MOST_NOTES],
            id=id_of(past),
            name=(os.environ.get("WANDB_NAME") or past.name)[:NAME_LENGTH],  # <date>/<time>-<name>: the folder
            group=self.settings.group,
            job_type=self.settings.job_type or "sweep",
            config=content.config(),
        )
        history = self._new([record for workload in content.workloads for record in content.history(workload)])
        history += self._new(content.roofline_history())
        _log(run, content, history, self.earlier.step, page)
        _log_results(run, past)
        _log_files(run, past.folder, past.rows, content.rows)
        return [self._finish(run, failed=any(row.failed for row in content.rows))], history

    def _record_cases(self) -> tuple[Sequence[str], list[dict[str, Any]]]:
        """Record each case as a run of its own, in a group. Return their folders and the figures that are new."""
        past, content, recorded, history = self.content.run, self.content, [], []
        for line in content.lines:
            row, figures = line.row, case_figures(line)
            if not (new := self._new([{"case": row.case.key, **figures}])):
                continue
            history += new
            run = self._begin(
                [line],
                id=f"{id_of(past)}-{row.case.key}",
                name=content.names.case(row.case)[:NAME_LENGTH],
                group=group_of(past.folder, self.settings.group),
                job_type=self.settings.job_type or "case",
                config=content.case_config(line),
            )
            run.log({name: value for name, value in figures.items() if is_number(value)}, step=self.earlier.step)
            run.summary.update(figures)
            _log_files(run, past.folder, [row], [row])
            recorded.append(self._finish(run, failed=row.failed))
        return recorded, history

    def _begin(self, lines: Sequence[Line], notes: str | None = None, **arguments: Any) -> wandb.Run:
        """Begin a run of W&B that shows ``lines``; ``notes`` are those if the user has none."""
        workloads, impls = [line.case.workload.name for line in lines], [line.case.impl.name for line in lines]
        tags = [redact(tag)[:TAG_LENGTH] for tag in dict.fromkeys((*self.settings.tags, *workloads, *impls))]
        return wandb.init(
            mode="offline",
            dir=str(self.into),
            project=self.settings.project,
            entity=self.settings.entity,
            tags=list(dict.fromkeys(tags)),
            notes=redact(self.settings.notes or notes or "") or None,
            resume="allow",
            settings=wandb.Settings(**QUIET),
            **redact_values(arguments),
        )

    def _new(self, history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the records of ``history`` that no earlier session has recorded."""
        known = set(self.earlier.sent)
        return [dict(record) for record in history if _digest(record) not in known]

    def _finish(self, run: wandb.Run, *, failed: bool) -> str:
        """End ``run`` and return its folder, relative to the one it is in."""
        recorded = Path(run.settings.sync_dir)
        run.finish(exit_code=1 if failed else 0)
        return str(recorded.resolve().relative_to(self.into.resolve()))


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def id_of(run: Run) -> str:
    """Return the id of a run at W&B: the same for every session of it, also after its folder was moved."""
    first = run.sessions[0] if run.sessions else {}
    facts = [run.folder.resolve().name, *(str(first.get(name)) for name in ("hostname", "started", "command"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def on_server(run: Run, settings: SimpleNamespace) -> str:
    """Return the address of ``run`` if the server has it with as many cases; "" if it has not, or does not answer."""
    try:
        api = wandb.Api(timeout=max(1, int(settings.timeout_s / 4)))
        there = api.run(f"{settings.entity or api.default_entity}/{settings.project}/{id_of(run)}")
        whole = there.summary.get("cases/total") == len(run.lines) and there.state == "finished"
        return str(there.url) if whole else ""
    except (wandb.Error, ValueError, TypeError):
        return ""


def _page(run: Run) -> dict[str, Any]:
    """Return the page of ``runner report html``, which has interactive charts with intervals; {} without vl-convert."""
    try:
        return {PAGE: wandb.Html(to_html.page([run]), inject=False)}
    except BadInput:
        return {}


def _log(
    run: wandb.Run, content: Content, history: Sequence[dict[str, Any]], step: int, more: Mapping[str, Any]
) -> None:
    """Log the table, the charts and ``more`` in one step, each record of the history in one, then the summary."""
    table = content.table()
    wandb.Table.MAX_ROWS = max(wandb.Table.MAX_ROWS, len(table["data"]))  # longer tables are cut without an error
    page: dict[str, Any] = {"rows": wandb.Table(**table), **more}
    _define(run, f"{ROOFLINE}/intensity", f"{ROOFLINE}/*")
    if roofline := content.roofline():
        page[f"charts/{ROOFLINE}"] = _chart(roofline, "roofline: TFLOP/s over intensity", "flop/byte")
    for workload in content.workloads:
        x = content.x(workload)
        for figure, series in content.charts(workload).items():
            page[f"charts/{workload}/{figure}"] = _chart(series, content.title(workload, figure), x)
            _define(run, f"{workload}/{x}", f"{workload}/{figure}/*")
    run.log(page, step=step)
    for place, record in enumerate(history, step + 1):
        run.log(record, step=place)
    run.summary.update(content.summary())


def _define(run: wandb.Run, axis: str, figures: str) -> None:
    """Have W&B draw ``figures`` over ``axis``, without a summary: the last size says nothing about the sweep."""
    run.define_metric(axis, summary="none", hidden=True)
    run.define_metric(figures, step_metric=axis, step_sync=False, summary="none")


def _chart(series: Series, title: str, xname: str) -> Any:
    points = [tuple(zip(*line, strict=True)) for line in series.values()]
    xs, ys = [list(xs) for xs, _ in points], [list(ys) for _, ys in points]
    return wandb.plot.line_series(xs=xs, ys=ys, keys=list(series), title=title, xname=xname)


def _log_results(run: wandb.Run, past: Run) -> None:
    """Log the results and the certificate of the past run as an artifact."""
    files = {name: path for name in RESULTS if (path := run_folder.artifact(past.folder, name))}
    if certificate := certificate_file(past.environment):
        files["certificate.json"] = certificate
    _log_artifact(run, "results", "results", files)


def _log_files(run: wandb.Run, folder: Path, rows: Sequence[Row], tabled: Sequence[Row]) -> None:
    """Log the files of the measurements of ``rows`` as an artifact, and those of ``tabled`` that are tables as such."""
    if files := {str(name): path for row in rows for name, path in kept_files(folder, row).items()}:
        _log_artifact(run, "files", "measurements", files)
        run.log({name: wandb.Table(**table) for name, table in artifact_tables(folder, tabled).items()})


def _log_artifact(run: wandb.Run, name: str, kind: str, files: Mapping[str, Path]) -> None:
    artifact = wandb.Artifact(f"{name}-{run.id}", type=kind)
    for file, path in files.items():
        artifact.add_file(str(path), name=file)
    run.log_artifact(artifact)


def certificate_file(environment: Mapping[str, Any]) -> Path | None:
    """Return the certificate of ``verify`` that the run was made with; None if it is not on this machine."""
    taken = mapping(mapping(environment.get("worker")).get("certificate")).get("taken")
    if not taken:
        return None
    files = sorted(cache.cache_folder("certificate").glob("*.json"))
    return next((file for file in files if (cache.read_record(file) or {}).get("taken") == taken), None)


def _no_credentials() -> str:
    """Return the reason why there is no usable API key, else "". This sends nothing to the server."""
    try:
        return "" if wandb.login(prompt=False, verify=False) else NO_KEY
    except wandb.Error as error:
        return str(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), SimpleNamespace(**json.loads(sys.argv[3])), sys.argv[4])
