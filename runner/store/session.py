"""One process's share of a run: it begins the run's folder or goes on in it, and writes down what happens."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.experiment.case import CaseRecord, Plan
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.store import resume, run_folder
from runner.store.fingerprint import Fingerprints
from runner.store.journal import Contents, Journal
from runner.store.resume import Work


class Session:
    """Use it as a context manager: the folder's journal is locked meanwhile.

    ``devices`` gives the names of the GPUs that will be used, or None; asked only if rows of an earlier session are to
    be judged. Raises BadInput: the folder cannot be written, or is being written.
    """

    def __init__(self, plan: Plan, argv: Sequence[str], devices: Callable[[], Collection[str] | None]) -> None:
        self.plan, self.fingerprints = plan, Fingerprints()
        self.earlier, self.work = Contents(), Work(again={case.key: "" for case in plan.cases})
        self.rows: list[Row] = []  # of this session, as are the rounds
        self.rounds: list[Comparison] = []
        self.unsaved: list[Row] = []  # of which the journal has none or only a part
        self._begun = False  # a worker has been heard of, or a case given to one
        self._cases = plan.cases
        self.environment = run_folder.environment(argv)
        of = plan.resume.of
        try:
            self.folder = resume.find(of, plan.output_dir, plan.name) if of else self._new_folder()
            if of and not plan.resume.trust:
                resume.check_owner(self.folder)
            self._journal = Journal(self.folder)
        except OSError as error:
            raise _unwritable(plan, error) from None
        try:
            if of:
                self._look_back(devices)
            if self.work.again:
                self._journal.begin()
                if of:
                    self._write_heads()
        except OSError as error:
            self._journal.close()
            raise _unwritable(plan, error) from None
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._journal.__exit__(kind, error, at)
        if isinstance(error, BadInput) and not self.resumed and not self._begun:
            run_folder.withdraw(self.folder)  # resume=last would find it

    @property
    def cases(self) -> list[CaseRecord]:
        """Those to be run."""
        return [case for case in self.plan.cases if case.key in self.work.again]

    @property
    def resumed(self) -> bool:
        """Whether there was an earlier session."""
        return bool(self.plan.resume.of)

    def says(self) -> list[str]:
        """What the user is told before anything is run."""
        return resume.sentences(self.folder, self.work, self.earlier.torn) if self.resumed else []

    def read_sources(self) -> None:
        """Those that the cases use: a tenth of a second, in which no GPU waits yet for its first case."""
        for case in self.cases:
            self.fingerprints.of(case)

    def ready(self, worker: dict[str, Any], gpu_uuid: str = "") -> None:
        """A worker is up, and says this of itself. Raises OSError."""
        self._begun = True
        facts = {**self.environment, "worker": self.environment.get("worker", worker)}
        if gpu_uuid:
            facts["workers"] = {**self.environment.get("workers", {}), gpu_uuid: worker}
        if facts != self.environment:
            self.environment = facts
            run_folder.write_environment(self.folder, facts)

    def started(self, case: CaseRecord) -> None:
        """``case`` has been given to a worker. Raises OSError."""
        self._begun = True
        self._journal.start(case)

    def done(self, row: Row) -> Row:
        """``row`` as it is kept, in the journal. Raises OSError; it is among ``rows`` all the same."""
        self._begun = True
        files = tuple(file.removeprefix(f"{self.folder.absolute()}{os.sep}") for file in row.files)
        row = replace(row, fingerprint=self.fingerprints.of_row(row.case), files=files)
        if starts := self._journal.starts.get(row.case.key):
            row = replace(row, metrics={**row.metrics, "attempt": starts})
        self.rows.append(row)
        self.unsaved.append(row)
        self._journal.row(row)
        self.unsaved.pop()
        return row

    def compared(self, rounds: Comparison) -> None:
        """The cases of one point have been sampled side by side. Raises OSError."""
        self.rounds.append(rounds)
        self._journal.rounds(rounds)

    def settle(self) -> None:
        """All of it is on the disk. Raises OSError if it is not."""
        self._journal.settle()

    def grid(self) -> tuple[list[Row], list[Comparison]]:
        """The rows of the plan's cases, whichever session made them, in the plan's order; and all comparisons."""
        new = {row.case.key: row for row in self.rows}
        rows = self.work.kept | new
        return [rows[case.key] for case in self.plan.cases if case.key in rows], self._compared(new)

    def everything(self) -> list[Row]:
        """All rows of the folder."""
        return list((self.earlier.rows | {row.case.key: row for row in self.rows}).values())

    @property
    def unreadable(self) -> int:
        """Rows of an earlier session, and of no later one, that this version cannot take."""
        return len(self.earlier.unreadable - {row.case.key for row in self.rows})

    def give_up(self, error: OSError) -> list[str]:
        """Return what to tell the user of ``error``, which has ended the run.

        Rows that are not in the journal are printed as JSON lines on stderr: the disk may be full, so nothing else is
        written.
        """
        why = error.strerror or str(error) if self._journal.exists else "it has been removed"
        if self._journal.intact and not self.unsaved:
            stopped = f"stopped by an error of the system: {why}. No further case is started"
            return [stopped, f"All {len(self.everything())} rows are in the journal; to go on: resume={self.folder}"]
        rows = self.unsaved if self._journal.intact else self.everything()
        for row in rows:
            print(json.dumps({"record": "row", **row.to_record()}, separators=(",", ":")), file=sys.stderr)
        return [
            f"{self.folder} cannot be written any more: {why}. No further case is started",
            f"{len(rows)} rows could not be saved; they are printed above as JSON lines, to be copied",
        ]

    def _look_back(self, devices: Callable[[], Collection[str] | None]) -> None:
        """What earlier sessions have left to do."""
        self.earlier = resume.load(self.folder)
        self._journal.starts = dict(self.earlier.starts)
        self.work = resume.work(self.plan.cases, self.earlier, self.plan.resume, self.fingerprints, devices())
        for row in self.work.lost:
            self.rows.append(row)
            self._journal.row(row)

    def _new_folder(self) -> Path:
        """With all that stands beside the journal: a folder that has one can be resumed. Raises OSError."""
        folder = run_folder.claim(self.plan.output_dir, self.plan.name)
        run_folder.write_plan(folder, self.plan, self.plan.cases)
        run_folder.write_environment(folder, self.environment)
        return folder

    def _write_heads(self) -> None:
        """What stands beside the journal, with what this session adds to it. Raises OSError."""
        earlier = run_folder.earlier_sessions(self.folder)
        if earlier:
            self.environment["earlier_sessions"] = earlier
        known = self.plan.cases if self.plan.resume.whole else _known(self.folder, self.earlier)
        if known != self.plan.cases:
            self._cases = tuple({case.key: case for case in (*known, *self.plan.cases)}.values())
        if len(self._cases) > len(known) or not run_folder.is_head(self.folder, self.plan):
            run_folder.write_plan(self.folder, self.plan, self._cases)
        run_folder.write_environment(self.folder, self.environment)

    def _compared(self, new: Collection[str]) -> list[Comparison]:
        """Without what earlier sessions say of cases that have a row of this one."""
        kept = []
        for rounds in self.earlier.rounds:
            batches = {key: batches for key, batches in rounds.batches_us.items() if key not in new}
            kept.append(replace(rounds, batches_us=batches))
        return [*kept, *self.rounds]


def _known(folder: Path, contents: Contents) -> Sequence[CaseRecord]:
    """The cases that the folder has so far."""
    try:
        return tuple(run_folder.read_cases(folder))
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # none yet, or of an older version
        return [row.case for row in contents.rows.values()]


def _unwritable(plan: Plan, error: OSError) -> BadInput:
    where = f"resume={plan.resume.of}" if plan.resume.of else f"output_dir={plan.output_dir}"
    return BadInput(f"{where}: cannot write there: {error.strerror or error}")
