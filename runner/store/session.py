"""One process's share of a run: it begins the run's folder or resumes it, and records what happens."""

import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import orjson

from .. import implementations
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Scalar
from ..records.figures import counted
from ..records.paired_rounds import PairedRounds
from ..records.plan import Plan
from ..records.row import Row
from . import journal, resume, run_folder
from .fingerprint import Fingerprints, paths
from .journal import Contents, Journal
from .provenance import Repositories
from .resume import Remaining


class Session:
    """Records what happens in the folder of ``plan``, whose journal stays locked. Use it as a context manager.

    ``devices`` returns the names of the GPUs that will be used, or None; it is called only if rows of an earlier
    session are judged. Raises BadInput if the folder cannot be written, or another process writes it.
    """

    def __init__(self, plan: Plan, argv: Sequence[str], devices: Callable[[], Collection[str] | None]) -> None:
        self.plan, self.fingerprints = plan, Fingerprints()
        self.work = Remaining(again={case.key: "" for case in plan.cases})
        self.rows: list[Row] = []  # rows of this session
        self.unsaved: list[Row] = []  # rows that are not in the journal, or only a part of them
        self._repositories = Repositories()
        self.environment = run_folder.environment(["python", "-m", "runner", *argv], self._repositories)
        self._contents = Contents()  # contents of the journal, with the rows of this session
        self._new = not plan.resume.of
        self._planned = {case.key: case for case in plan.cases}  # all cases of the folder, by their keys
        self._begun = False  # a worker is ready, or has been given a case
        try:
            if plan.resume.of:
                self.folder = run_folder.find(plan.resume.of, plan.output_dir, plan.name)
                if not plan.resume.trust:
                    run_folder.check_owner(self.folder)
                    if plan.whole:  # nobody has typed what its cases run
                        run_folder.check_code(self.folder, plan.cases)
            else:
                self.folder = run_folder.claim(plan.output_dir, plan.name)
                run_folder.write_plan(self.folder, plan, plan.cases)
                run_folder.write_environment(self.folder, self.environment)
            self._journal = Journal(self.folder)  # last, since a folder with a journal can be resumed
            try:
                if plan.resume.of:
                    self._read_earlier_sessions(devices)
                else:
                    self._journal.begin()
            except BaseException:
                self._journal.close()
                raise
        except OSError as error:
            where = f"resume={plan.resume.of}" if plan.resume.of else f"output_dir={plan.output_dir}"
            raise BadInput(f"{where}: cannot write there: {error.strerror or error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._repeat_own_rows()
        self._journal.close()
        if isinstance(error, BadInput) and self._new and not self._begun:
            run_folder.withdraw(self.folder)  # resume=last would find it

    @property
    def cases(self) -> list[CaseRecord]:
        """The cases to run."""
        return [case for case in self.plan.cases if case.key in self.work.again]

    def summary(self) -> list[str]:
        """Return the lines that tell the user what is resumed; none in a new run."""
        return [] if self._new else resume.resume_messages(self.folder, self.work, self._contents.unreadable)

    def extend(self, plan: Plan) -> None:
        """Prepare to run those cases of ``plan`` that have no row, in the folder of this session, which has ended.

        The rows are known and count, so nothing is read or judged again. Enter the session again to run the cases.
        Raises BadInput if the folder cannot be written, or another process writes it.
        """
        rows, keys = self._contents.rows, [case.key for case in plan.cases]
        kept = {key: rows[key] for key in keys if key in rows and rows[key].status != "skipped"}
        self.work = Remaining(kept, again={key: "" for key in keys if key not in kept})
        self._planned |= {case.key: case for case in plan.cases}
        self.plan, self.rows, self._begun = plan, [], True
        self.fingerprints, self._repositories = Fingerprints(), Repositories()  # files may differ now
        try:
            run_folder.write_plan(self.folder, plan, list(self._planned.values()))
            starts, self._journal = self._journal.starts, Journal(self.folder)
            self._journal.starts = starts
        except OSError as error:
            raise BadInput(f"{self.folder}: cannot write there: {error.strerror or error}") from None

    def read_sources(self) -> None:
        """Compute fingerprints and provenance of the cases to run before a GPU waits for the first."""
        for case in self.cases:
            self.fingerprints.of(case)
            self._provenance(case)

    def ready(self, worker: dict[str, Any], gpu_uuid: str = "") -> None:
        """Record the facts ``worker`` of a worker that is ready. Raises OSError."""
        self._begun = True
        facts = {**self.environment, "worker": self.environment.get("worker", worker)}
        if gpu_uuid:
            facts["workers"] = {**self.environment.get("workers", {}), gpu_uuid: worker}
        if facts != self.environment:
            self.environment = facts
            run_folder.write_environment(self.folder, facts)

    def started(self, case: CaseRecord) -> None:
        """Record that ``case`` is given to a worker. Raises OSError."""
        self._begun = True
        self._journal.start(case)

    def done(self, row: Row) -> Row:
        """Record ``row``, and return it completed. Raises OSError; ``rows`` has it all the same."""
        self._begun = True
        files = tuple(file.removeprefix(f"{self.folder.absolute()}{os.sep}") for file in row.files)
        starts, fingerprint = self._journal.starts[row.case.key], self.fingerprints.of_row(row)
        attempt = {"attempt": starts} if starts else {}
        metrics = {**row.metrics, **attempt, **self._provenance(row.case, paths(fingerprint))}
        row = replace(row, fingerprint=fingerprint, files=files, metrics=metrics)
        self._add(row)
        return row

    def compared(self, rounds: PairedRounds) -> list[Row]:
        """Record the comparison of the cases of a problem. Raises OSError.

        Return new rows for cases whose outputs were wrong in the rounds. They replace the earlier rows.
        """
        known = self._contents.rows
        wrong = {key: f"in the paired rounds: {reason}" for key, reason in rounds.wrong.items() if key in known}
        corrected = [known[key].found_wrong(reason) for key, reason in wrong.items()]
        for row in corrected:
            self.rows = [other for other in self.rows if other.case.key != row.case.key]
            self._add(row)
        self._contents.add_rounds(rounds)
        self._journal.rounds(rounds)
        return corrected

    def stop(self) -> None:
        """Record that the user ends the session. After any other end, the cases in flight may have caused it."""
        self._journal.stop()

    def settle(self) -> str:
        """Flush all records to the disk. Return what the user should know about them, or "". Raises OSError."""
        repeated = self._repeat_own_rows()
        self._journal.settle()
        many = f"{repeated} rows" if repeated > 1 else "a row"
        return f"another process appended {many} to {journal.NAME}; this run's own count" if repeated else ""

    def _repeat_own_rows(self) -> int:
        """Record again each row of which another process has appended one. Return how many. Raises OSError."""
        rows = [self._contents.rows[key] for key in self._journal.foreign_rows() if key in self._contents.rows]
        for row in rows:
            self._journal.row(row)
        return len(rows)

    def grid(self) -> tuple[list[Row], list[PairedRounds]]:
        """Return the valid rows of all sessions, in the order of the plan's cases, and the comparisons."""
        valid = self.work.kept.keys() | {row.case.key for row in self.rows}
        rows = [self._contents.rows[case.key] for case in self.plan.cases if case.key in valid]
        return rows, self._contents.rounds

    def everything(self) -> list[Row]:
        """Return all rows of the folder."""
        return list(self._contents.rows.values())

    def give_up(self, error: OSError) -> list[str]:
        """Return the messages about ``error``, which ended the run.

        Rows that are not in the journal are printed as JSON lines on stderr: the disk may be full, so nothing else is
        written.
        """
        reason = self._journal.loss or error.strerror or str(error)
        if self._journal.intact and not self.unsaved:
            stopped = f"stopped by an error of the system: {reason}. No further case is started"
            return [stopped, f"All {len(self.everything())} rows are in the journal; to go on: resume={self.folder}"]
        rows = self.unsaved if self._journal.intact else self.everything()
        for row in rows:
            print(orjson.dumps({"record": "row", **row.to_record()}).decode(), file=sys.stderr)
        return [
            f"the run in {self.folder} cannot go on: {reason}. No further case is started",
            f"{counted(len(rows), 'row')} could not be saved; they are printed above as JSON lines, to be copied",
        ]

    def _provenance(self, case: CaseRecord, used: Sequence[str] = ()) -> dict[str, Scalar]:
        """Return the commit of the files of ``case``, as it was at the first request.

        ``used`` are the paths that it has used, if it has run.
        """
        if commit := case.impl.commit:
            place = implementations.build(case.impl).revised()
            return self._repositories.of_revision(place, commit) if place else {}
        return self._repositories.provenance(self.fingerprints.files(case), used)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self._contents.add_row(row)
        self.unsaved.append(row)
        self._journal.row(row)
        self.unsaved.pop()

    def _read_earlier_sessions(self, devices: Callable[[], Collection[str] | None]) -> None:
        """Find out which cases are left to run; if there are any, begin this session. Raises OSError."""
        self._contents = journal.load(self.folder)
        self._journal.starts = self._contents.starts.copy()
        plan, folder = self.plan, self.folder
        self.work = resume.remaining(plan.cases, self._contents, plan.resume, self.fingerprints, devices())
        for row in self.work.lost:
            self.done(row)
        if not self.work.again:
            return
        self._journal.begin()
        try:
            earlier = run_folder.read_plan(folder, with_cases=not plan.whole)
            complete = run_folder.plan_settings(plan) == run_folder.plan_settings(earlier)
        except (OSError, ValueError):  # a damaged file
            earlier, complete = replace(plan, cases=()), False
        self._planned = {case.key: case for case in (*earlier.cases, *plan.cases)}
        if not complete or not (plan.whole or len(self._planned) == len(earlier.cases)):
            run_folder.write_plan(folder, plan, list(self._planned.values()))
        if sessions := run_folder.earlier_sessions(folder):
            self.environment["earlier_sessions"] = sessions
        run_folder.write_environment(folder, self.environment)
