"""One process's share of a run: it begins the run's folder or resumes it, and records what happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import orjson

import runner.implementations as implementations
from runner.experiment.case import CaseRecord, Plan, Scalar
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.store import journal, resume, run_folder
from runner.store.fingerprint import Fingerprints, Repositories
from runner.store.journal import Contents, Journal
from runner.store.resume import Work


class Session:
    """Records what happens in the folder of ``plan``, whose journal stays locked. Use it as a context manager.

    ``devices`` returns the names of the GPUs that will be used, or None; it is called only if rows of an earlier
    session are judged. Raises BadInput if the folder cannot be written, or another process writes it.
    """

    def __init__(self, plan: Plan, argv: Sequence[str], devices: Callable[[], Collection[str] | None]) -> None:
        self.plan, self.fingerprints = plan, Fingerprints()
        self.work = Work(again={case.key: "" for case in plan.cases})
        self.rows: list[Row] = []  # of this session
        self.unsaved: list[Row] = []  # rows that are not in the journal, or only a part of them
        self.environment = run_folder.environment(argv)
        self._contents = Contents()  # of the journal, and what this session adds
        self._repositories = Repositories()
        self._commits: dict[tuple[str, str], dict[str, Scalar]] = {}  # by workload and implementation
        self._begun = False  # a worker is ready, or has been given a case
        try:
            if plan.resume.of:
                self.folder = run_folder.find(plan.resume.of, plan.output_dir, plan.name)
                if not plan.resume.trust:
                    run_folder.check_owner(self.folder)
            else:
                self.folder = run_folder.claim(plan.output_dir, plan.name)
                run_folder.write_plan(self.folder, plan, plan.cases)
                run_folder.write_environment(self.folder, self.environment)
            self._journal = Journal(self.folder)  # last, since a folder with a journal can be resumed
            try:
                if self.resumed:
                    self._read_earlier_sessions(devices)
                else:
                    self._journal.begin()
            except BaseException:
                self._journal.close()
                raise
        except OSError as error:
            where = f"resume={plan.resume.of}" if plan.resume.of else f"output_dir={plan.output_dir}"
            raise BadInput(f"{where}: cannot write there: {error.strerror or error}") from None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._journal.close()
        if isinstance(error, BadInput) and not self.resumed and not self._begun:
            run_folder.withdraw(self.folder)  # resume=last would find it

    @property
    def cases(self) -> list[CaseRecord]:
        """The cases to run."""
        return [case for case in self.plan.cases if case.key in self.work.again]

    @property
    def resumed(self) -> bool:
        """Whether there was an earlier session."""
        return bool(self.plan.resume.of)

    def summary(self) -> list[str]:
        """Return the lines that tell the user what is resumed; none in a new run."""
        return resume.summary(self.folder, self.work, self._contents.unreadable) if self.resumed else []

    def read_sources(self) -> None:
        """Compute the fingerprints of the cases to run, before a GPU waits for the first of them. It takes 0.1 s.

        Also find out which commit their files are from.
        """
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
        starts = self._journal.starts.get(row.case.key)
        metrics = {**row.metrics, **({"attempt": starts} if starts else {}), **self._provenance(row.case)}
        row = replace(row, fingerprint=self.fingerprints.of_row(row.case), files=files, metrics=metrics)
        self._add(row)
        return row

    def compared(self, rounds: Comparison) -> None:
        """Record the comparison of the cases of a problem. Raises OSError."""
        self._contents.add_rounds(rounds)
        self._journal.rounds(rounds)

    def stop(self) -> None:
        """Record that the user ends the session. After any other end, the cases in flight may have caused it."""
        self._journal.stop()

    def settle(self) -> None:
        """Flush all records to the disk. Raises OSError."""
        self._journal.settle()

    def grid(self) -> tuple[list[Row], list[Comparison]]:
        """Return the valid rows of all sessions, in the order of the plan's cases, and the comparisons."""
        valid = self.work.kept.keys() | {row.case.key for row in self.rows}
        rows = [self._contents.rows[case.key] for case in self.plan.cases if case.key in valid]
        return rows, self._contents.rounds

    def everything(self) -> list[Row]:
        """Return all rows of the folder."""
        return list(self._contents.rows.values())

    def give_up(self, error: OSError) -> list[str]:
        """Return what to tell the user about ``error``, which ended the run.

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
            f"{len(rows)} rows could not be saved; they are printed above as JSON lines, to be copied",
        ]

    def _provenance(self, case: CaseRecord) -> dict[str, Scalar]:
        """Return which commit the files of ``case`` are from, as it was at the first request."""
        kind = case.workload.name, case.impl.text
        if kind not in self._commits:
            if commit := case.impl.commit:
                place = implementations.build(case.impl).revised()
                self._commits[kind] = self._repositories.of_revision(place, commit) if place else {}
            else:
                self._commits[kind] = self._repositories.provenance(self.fingerprints.files(case))
        return self._commits[kind]

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self._contents.add_row(row)
        self.unsaved.append(row)
        self._journal.row(row)
        self.unsaved.pop()

    def _read_earlier_sessions(self, devices: Callable[[], Collection[str] | None]) -> None:
        """Find out which cases are left to run; if there are any, begin this session. Raises OSError."""
        self._contents = journal.load(self.folder)
        self._journal.starts = dict(self._contents.starts)
        plan, folder = self.plan, self.folder
        self.work = resume.work(plan.cases, self._contents, plan.resume, self.fingerprints, devices())
        for row in self.work.lost:
            self._add(row)
        if not self.work.again:
            return
        self._journal.begin()
        try:
            earlier = plan.cases if plan.resume.whole else run_folder.read_cases(folder)
            complete = run_folder.has_settings(folder, plan)
        except (OSError, ValueError):  # written by an incompatible version
            earlier, complete = [], False
        cases = list({case.key: case for case in (*earlier, *plan.cases)}.values())
        if len(cases) > len(earlier) or not complete:
            run_folder.write_plan(folder, plan, cases)
        if sessions := run_folder.earlier_sessions(folder):
            self.environment["earlier_sessions"] = sessions
        run_folder.write_environment(folder, self.environment)
