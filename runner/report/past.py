"""A past run, read from its folder. Nothing here runs, imports or changes what the folder names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.report import derive
from runner.report.derive import Line, Names
from runner.store import journal, provenance, run_folder

EXAMPLE = "outputs/<date>/<time>-<name>"
OUTPUTS = "outputs"  # where runs are, unless ``output_dir`` says otherwise


@dataclass(frozen=True)
class Run:
    """What the folder of a run holds."""

    folder: Path
    rows: Sequence[Row]  # the last row of each case, in the order of the plan
    rounds: Sequence[Comparison]
    baseline: str | None  # its own setting
    columns: Sequence[str]  # those that its table shows; empty: the usual ones
    sessions: Sequence[Mapping[str, Any]]  # facts about the machine, the versions and the command, one per session
    unreadable: int  # records of its journal that are damaged or cut off
    title: str = ""  # the name of the run
    cases: Sequence[CaseRecord] = ()  # of its plan, and those of its rows

    @property
    def name(self) -> str:
        """``<date>/<time>-<name>``."""
        return "/".join(self.folder.resolve().parts[-2:])

    @property
    def environment(self) -> Mapping[str, Any]:
        """The facts of the last session; empty if they cannot be read."""
        return self.sessions[-1] if self.sessions else {}

    @property
    def commits(self) -> str:
        """The commits that its rows are from, short and in order, with ``*`` for changed files; "" if none is known.

        Rows of older runs have none: then it is the commit of this project.
        """
        if own := provenance.commits([row.metrics for row in self.rows]):
            return own
        return provenance.commits(self.sessions)

    @property
    def commit(self) -> str | None:
        """The commits of this project, in order and without repetition; None if none is known."""
        found = [session.get("commit") for session in self.sessions]
        return ", ".join(dict.fromkeys(commit for commit in found if commit and isinstance(commit, str))) or None

    @cached_property
    def lines(self) -> list[Line]:
        """One line per case, against the run's own baseline."""
        return derive.lines(self.rows, self.baseline, self.rounds)

    @cached_property
    def names(self) -> Names:
        """Labels of its cases."""
        return Names(self.cases or [row.case for row in self.rows])

    def rows_of(self, lines: Iterable[Line]) -> list[Row]:
        """Return the rows behind ``lines``, of which each may have several replicas."""
        keys = {replace(line.row.case, replica=0).key for line in lines}
        return [row for row in self.rows if replace(row.case, replica=0).key in keys]

    def against(self, baseline: str | None) -> Run:
        """Return the run with another baseline, or the same if that is None."""
        return self if baseline is None else replace(self, baseline=baseline)


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
        head.get("name", ""),
        cases,
    )


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
