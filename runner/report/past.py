"""A past run, read from its folder. Nothing here runs, imports or changes what the folder names."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import HARMLESS, Row
from runner.experiment.schema import UNREADABLE, BadInput
from runner.report.derive import Run
from runner.store import journal, run_folder
from runner.store.fingerprint import commits

EXAMPLE = "outputs/<date>/<time>-<name>"
OUTPUTS = "outputs"  # where runs are, unless ``output_dir`` says otherwise


def read(of: str | Path, output_dir: str = OUTPUTS) -> Run:
    """Return the run in the folder ``of``; ``last`` is the newest under ``output_dir``.

    Raises BadInput if there is no run, its journal has a newer format, or its settings cannot be read.
    """
    if str(of) == "last":
        if not (newest := run_folder.newest(output_dir)):
            raise BadInput(f"last: there is no run under {output_dir}; give the folder of one, as {EXAMPLE}")
        of = newest
    folder = Path(of)
    if not (folder / journal.NAME).is_file():
        what = f"it holds no {journal.NAME}, so it is not the folder of a run"
        nearby = run_folder.newest(str(folder)) or run_folder.newest(str(folder.parent))
        raise BadInput(f"{folder}: {what if folder.is_dir() else 'there is no such folder'}; give {nearby or EXAMPLE}")
    contents = journal.load(folder)
    head: Mapping[str, Any] = {}
    try:
        head = run_folder.read_head(folder)
    except FileNotFoundError:  # a journal alone
        pass
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / run_folder.PLAN} cannot be read ({error})") from None
    cases = every_case(_planned(folder), contents.rows.values())
    return Run(
        folder,
        [contents.rows[case.key] for case in cases if case.key in contents.rows],
        contents.rounds,
        head.get("baseline"),
        tuple(head.get("columns", ())),
        run_folder.earlier_sessions(folder),
        contents.unreadable,
        head.get("name") or folder.name,
        cases,
        head.get("question"),
        [Choice.from_record(one) for one in head.get("conclusion", ())],
    )


def read_all(folders: Sequence[str | Path], output_dir: str = OUTPUTS) -> list[Run]:
    """Return the runs in ``folders``; say on stderr how many records cannot be read. Raises BadInput as ``read``."""
    runs = [read(of, output_dir) for of in folders]
    for run in runs:
        if count := run.unreadable:
            records = f"{count} record{'s' * (count > 1)} of its journal cannot be read"
            print(f"runner: {run.folder}: {records}: damaged, cut off or of another version", file=sys.stderr)
    return runs


def every_case(planned: Iterable[CaseRecord], rows: Iterable[Row]) -> list[CaseRecord]:
    """Return the cases of ``planned`` and of ``rows``, each once."""
    return list({case.key: case for case in (*planned, *(row.case for row in rows))}.values())


def _planned(folder: Path) -> list[CaseRecord]:
    """Return the cases of the plan in ``folder``; none if they cannot be read."""
    try:
        return run_folder.read_cases(folder)
    except (OSError, ValueError):
        return []


def folders(output_dir: str = OUTPUTS) -> list[Path]:
    """Return the folders of all runs under ``output_dir``, the oldest first."""
    found = [path.parent for path in Path(output_dir).glob(f"*/*/{journal.NAME}")]
    return sorted(found, key=lambda folder: (folder.parent.name, folder.name))


@dataclass(frozen=True)
class Summary:
    """What a list of runs says about one of them."""

    folder: Path
    name: str
    device: str = ""  # those of its rows
    commit: str = ""  # as ``Run.commits``
    cases: int = 0  # of its plan
    done: int = 0  # cases that have a row
    failed: int = 0  # rows that make the exit code 1
    unreadable: int = 0  # records of its journal
    problem: str = ""  # why the journal cannot be read; the figures are then 0


def summary(folder: Path) -> Summary:
    """Return the summary of the run in ``folder``. It takes a tenth of the time of ``read``. Raises nothing."""
    name, cases = folder.name[9:], 0  # after the time
    with suppress(OSError, ValueError):
        cases = (folder / run_folder.PLAN).read_bytes().count(b"\n") - 1
        name = run_folder.read_head(folder)["name"]
    rows: dict[str, dict[str, Any]] = {}
    unreadable = 0
    try:
        with open(folder / journal.NAME, "rb", opener=journal.no_link) as file:
            for line in file:
                try:
                    record = orjson.loads(line)
                    if record["record"] == "row":
                        rows[record["key"]] = _outline(record)
                    elif record["record"] == "session":
                        journal.check_format(record)
                except UNREADABLE:
                    unreadable += 1
    except (OSError, BadInput) as error:
        return Summary(folder, name, cases=cases, problem=getattr(error, "strerror", None) or str(error))
    outlines = list(rows.values())
    of = commits(outlines) or commits(run_folder.earlier_sessions(folder))
    devices = ", ".join(dict.fromkeys(row["device"] for row in outlines if row["device"]))
    failed = sum(row["status"] not in HARMLESS for row in outlines)
    return Summary(folder, name, devices, of, max(cases, len(rows)), len(rows), failed, unreadable)


def _outline(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``summary`` needs of a row. Raises one of UNREADABLE if it is none."""
    metrics = record["metrics"]
    found = {name: metrics.get(name) for name in ("repository", "commit", "dirty")}
    return {**found, "device": str(record["device"]), "status": str(record["status"])}
