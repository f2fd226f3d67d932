"""Read a past run from its folder, whole or in brief. Nothing here runs, imports or changes what the folder names."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..device.files import no_link
from ..records import untrusted
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.figures import counted
from ..records.plan import OUTPUTS, Plan
from ..records.row import HARMLESS, Row
from ..records.settings import Settings
from ..store import journal, run_folder
from ..store.provenance import commits
from ..store.resume import other_device
from .run import Run

MOST_ROWS = 20_000  # rows of the newest runs in which a case is looked for


def read_run(of: str | Path, output_dir: str = OUTPUTS) -> Run:
    """Return the run in the folder ``of``; ``last`` is the newest under ``output_dir``.

    Raises BadInput if there is no run, it has another format, or its settings cannot be read.
    """
    folder = run_folder.locate(of, output_dir)
    contents = journal.load(folder)
    try:
        plan = run_folder.read_plan(folder)
    except FileNotFoundError:  # a journal alone
        plan = Plan(cases=(), name=folder.name)
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / run_folder.PLAN} cannot be read ({error})") from None
    plan = with_cases(plan, contents.rows.values())
    rows = [contents.rows[case.key] for case in plan.cases if case.key in contents.rows]
    sessions = run_folder.earlier_sessions(folder)
    return Run(folder, plan, rows, contents.rounds, sessions=sessions, unreadable=contents.unreadable)


def read_runs(folders: Sequence[str | Path], output_dir: str = OUTPUTS) -> list[Run]:
    """Return the runs in ``folders``; say on stderr how many records cannot be read. Raises as ``read_run``."""
    runs = [read_run(of, output_dir) for of in folders]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise BadInput(f"{' '.join(map(str, folders))}: a run is given twice; give each run once")
    for run in runs:
        if count := run.unreadable:
            records = f"{counted(count, 'record')} of its journal cannot be read"
            print(f"runner: {run.folder}: {records}: damaged or cut off", file=sys.stderr)
    return runs


def with_cases(plan: Plan, rows: Iterable[Row]) -> Plan:
    """Return ``plan`` with the cases of ``rows`` after its own, each once."""
    cases = {case.key: case for case in (*plan.cases, *(row.case for row in rows))}
    return replace(plan, cases=tuple(cases.values()))


def newest_first(output_dir: str, most_rows: int = MOST_ROWS) -> Iterator[list[Row]]:
    """Yield the rows of each run under ``output_dir``, the newest run first, until ``most_rows`` have been read."""
    read = 0
    for folder in reversed(run_folder.run_folders(output_dir)):
        if read < most_rows:
            with suppress(BadInput):  # it has another format
                rows = journal.read_rows(folder)
                read += len(rows)
                yield rows


def newest_rows(cases: Iterable[CaseRecord], output_dir: str, devices: Collection[str] | None) -> dict[str, Row]:
    """Return the newest row with a time of each of ``cases``, of any replica and on one of ``devices``, by shared key.

    How exactly a row was measured does not count. ``devices`` are as in ``resume.other_device``.
    """
    wanted: dict[tuple[str, str, Settings], set[str]] = {}
    for case in cases:
        wanted.setdefault(_what_runs(case), set()).add(case.shared_key)
    newest: dict[str, Row] = {}
    for rows in newest_first(output_dir):
        for row in reversed(rows):
            if row.status in ("ok", "wrong") and not other_device(row, devices):
                newest |= dict.fromkeys(wanted.pop(_what_runs(row.case), ()), row)
        if not wanted:
            break
    return newest


def _what_runs(case: CaseRecord) -> tuple[str, str, Settings]:
    return case.workload.text, case.impl.text, case.settings.identity


def summarize(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the line of the run in ``folder`` in a list of runs, and what cannot be read of its journal, or "".

    The line is empty if nothing can be read. It takes a tenth of the time of ``read_run``. Raises nothing.
    """
    name, cases = folder.name[len(run_folder.TIME) :], 0
    with suppress(OSError, ValueError):
        with open(folder / run_folder.PLAN, "rb", opener=no_link) as file:
            cases = sum(1 for _ in untrusted.lines(file)) - 1
        name = run_folder.read_plan(folder, with_cases=False).name
    rows: dict[str, dict[str, Any]] = {}

    def read(record: dict[str, Any]) -> None:
        if record["record"] == "row":
            facts = {name: record["metrics"].get(name) for name in ("repository", "commit", "dirty")}
            rows[record["key"]] = {**facts, "device": str(record["device"]), "status": str(record["status"])}

    try:
        unreadable = journal.read_records(folder, read)
    except BadInput as error:
        return {}, str(error)
    cases = max(cases, len(rows))
    return {
        "date": folder.parent.name,
        "time": folder.name[: len(run_folder.TIME) - 1].replace("-", ":"),
        "name": name,
        "device": ", ".join(dict.fromkeys(row["device"] for row in rows.values() if row["device"])),
        "commit": commits(rows.values()),
        "cases": cases if len(rows) == cases else f"{len(rows)} of {cases}",
        "failed": sum(row["status"] not in HARMLESS for row in rows.values()),
        "folder": str(folder),
    }, f"{folder}: {counted(unreadable, 'record')} of its journal cannot be read" if unreadable else ""
