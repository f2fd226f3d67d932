"""Run: the rows of a run, as its folder holds them, with what is derived from them; and the names of several runs."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ..device import identity
from ..records.case import CaseRecord
from ..records.columns import DEVICE
from ..records.figures import counted
from ..records.paired_rounds import PairedRounds
from ..records.plan import Plan
from ..records.row import Row
from ..records.settings import NEUTRAL
from ..records.untrusted import mapping
from ..store.provenance import commits
from .lines import Line, derive_lines
from .names import Names
from .validity import verdict


@dataclass(frozen=True)
class Run:
    """A run, as its folder holds it."""

    folder: Path
    plan: Plan  # with the cases of all rows
    rows: Sequence[Row]  # the last row of each case, in the order of the plan
    rounds: Sequence[PairedRounds] = ()
    _: KW_ONLY
    sessions: Sequence[Mapping[str, Any]] = ()  # facts about machine, versions and command, one per session
    unreadable: int = 0  # records of its journal that are damaged or cut off

    @property
    def name(self) -> str:
        """``<date>/<time>-<name>``."""
        return "/".join(self.folder.resolve().parts[-2:])

    @property
    def environment(self) -> Mapping[str, Any]:
        """The facts of the last session; empty if they cannot be read."""
        return self.sessions[-1] if self.sessions else {}

    @property
    def devices(self) -> str:
        """The devices of its rows, in order of appearance."""
        return ", ".join(dict.fromkeys(row.device for row in self.rows if row.device))

    @property
    def commits(self) -> str:
        """The commits that its rows are from, short and in order, with ``*`` for changed files; "" if none is known."""
        return commits([row.metrics for row in self.rows])

    @cached_property
    def lines(self) -> list[Line]:
        """One line per case, against the run's own baseline, with the properties of its device that are asked for."""
        rows = self.rows
        if wanted := {*self.plan.columns} & {*DEVICE}:
            facts = (identity.device_columns(self.worker(row)).items() for row in rows)
            known = [{name: value for name, value in each if name in wanted} for each in facts]
            rows = [replace(row, metrics={**row.metrics, **each}) for row, each in zip(rows, known, strict=True)]
        done = {row.case.key for row in rows}
        missing = [case for case in self.plan.cases if case.key not in done]
        return derive_lines(rows, self.plan.baseline, self.rounds, missing)

    def worker(self, row: Row) -> Mapping[str, Any]:
        """Return the facts about the device of ``row``, by the last session that knows it; empty if none does."""
        for session in reversed(self.sessions):
            this_gpu = mapping(session.get("workers")).get(str(row.metrics.get("gpu_uuid")))
            for facts in map(mapping, (this_gpu, session.get("worker"))):
                if facts and row.device == mapping(facts.get("gpu")).get("name", "cpu"):
                    return facts
        return {}

    @cached_property
    def names(self) -> Names:
        """Labels of its cases."""
        return Names(self.plan.cases)

    def rows_of(self, lines: Iterable[Line]) -> list[Row]:
        """Return the rows behind ``lines``, of which each may have several replicas."""
        wanted = {(line.case.problem, line.case.impl.text) for line in lines}
        return [row for row in self.rows if (row.case.problem, row.case.impl.text) in wanted]

    def heading(self, rows: Sequence[Row], width: int) -> str:
        """Return its name and the devices of ``rows``, then the constant fields of each workload that are not plain."""
        ran = [row for row in rows if row.device != "cpu" or row.case.settings.device != "cuda"]  # there, a GPU lacks
        devices = replace(self, rows=ran).devices
        lines = [f"{self.plan.name} on {devices}" if devices else self.plan.name]
        shown = {row.case.workload.name for row in rows}
        for workload in self.names.constants:
            if workload in shown and (told := self.names.constant(workload)):
                words: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
                lines += textwrap.wrap(f"{workload}: {told}", width, subsequent_indent="  ", **words)
        return "\n".join(lines)

    def outcome(self, rows: Sequence[Row]) -> str:
        """Count ``rows`` by status: ``12 cases: 9 ok (2 contended), 3 not run``, ``4 of 12 cases: 4 ok``."""
        planned = len(self.plan.cases)
        total = counted(planned, "case")
        counts = Counter(row.status for row in rows)
        odd = Counter(word for row in rows if row.status == "ok" and (word := verdict(row)) != "ok")
        doubts = f" ({', '.join(f'{count} {word}' for word, count in odd.items())})" if odd else ""
        ended = [f"{count} {status}{doubts if status == 'ok' else ''}" for status, count in counts.items()]
        if len(rows) < len(self.rows):
            return f"{len(rows)} of {total}: {', '.join(ended)}".removesuffix(": ")
        missing = [f"{count} not run"] if (count := planned - len(rows)) else []
        return f"{total}: {', '.join([*(ended or ['no case done']), *missing])}"

    def with_plan(self, **fields: Any) -> Self:
        """Return the run with other ``fields`` of its plan."""
        return replace(self, plan=replace(self.plan, **fields))


def joint(runs: Sequence[Run]) -> Names:
    """Return labels that tell the cases of all ``runs`` apart.

    A setting that varies between runs alone, such as the number of samples, is no part of a problem: the same problems
    of two runs stand together.
    """
    return Names([case for run in runs for case in _cases(run)])


def _cases(run: Run) -> list[CaseRecord]:
    """Return the cases of ``run``, without settings that are the same in all of them."""
    if any(run.names.settings(case) for case in run.plan.cases):
        return list(run.plan.cases)
    return [replace(case, measures=(), settings=NEUTRAL) for case in run.plan.cases]


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a different name for each run: its time and name, with the date or the path where that is not enough."""
    for end in (1, 2, 0):
        names = ["/".join(run.folder.resolve().parts[-end:]) for run in runs]
        if len(set(names)) == len(runs):
            return names
    return [f"{name} ({place})" for place, name in enumerate(names, 1)]
