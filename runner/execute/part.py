"""A part of a grid that a task does on another machine: its cases, and a journal of its own of what became of them.

    parts/<name>/cases.jsonl    the cases, a line each, in the order in which they are to be done
    parts/<name>/job.json       who does them
    parts/<name>/rows.jsonl     the journal, as that of a run; also "ready" and "notice", and "done" at the end
    parts/<name>/worker.log     what the workers print
    parts/<name>/void           nobody wants it any more: a task that has not begun yet does not begin

The folder is to be seen by both machines. Its files appear late on the other one, and in pieces.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.execute import Event, Notice, Started, remote
from runner.execute.remote import MOST_DEATHS, one_line
from runner.experiment.case import Case
from runner.experiment.errors import BadInput
from runner.experiment.results import Comparison, Row
from runner.store import journal
from runner.store.journal import Journal

MOST_STARTS = 6  # without a row, and yet no death: each time the task's own time had come
DYING_S = 60.0  # that a predecessor on another node may hold the journal


class Part:
    """The folder, as the parent sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0  # bytes of the journal

    @classmethod
    def create(cls, parts: Path, cases: Sequence[Case]) -> Part:
        """A new one under ``parts``, named by the next number."""
        parts.mkdir(parents=True, exist_ok=True)
        number = len(list(parts.iterdir()))
        while True:
            folder = parts / f"{number:03}"
            try:
                folder.mkdir()
                break
            except FileExistsError:
                number += 1
        lines = [json.dumps(case.to_record()) for case in cases]
        (folder / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return cls(folder)

    @property
    def cases(self) -> list[Case]:
        """Raises OSError, ValueError, KeyError, TypeError: its writer was killed."""
        lines = (self.folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()
        return [Case.from_record(json.loads(line)) for line in lines]

    @property
    def job(self) -> dict[str, Any]:
        """What ``job.json`` says; {} if it is not there."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    @job.setter
    def job(self, facts: Mapping[str, Any]) -> None:
        (self.folder / "job.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")

    @property
    def is_void(self) -> bool:
        """Whether it has been given up."""
        return (self.folder / "void").exists()

    def give_up(self) -> None:
        """Let no task begin with it any more."""
        with contextlib.suppress(OSError):
            (self.folder / "void").touch()

    def news(self, last: bool = False) -> list[dict[str, Any]]:
        """Records that have appeared since the last call. ``last``: nobody writes any more, so take what there is.

        A record that is not all there yet is left for the next call: NFS may show the length of a file before what is
        in it, as zeros.
        """
        try:
            with open(self.folder / journal.NAME, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:  # not there yet, or just now not to be had
            return []
        if not last:
            text = text.partition(b"\0")[0]
            text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        return [*_records(text)]


def _records(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.split(b"\n"):
        with contextlib.suppress(ValueError):  # torn by a kill
            record = json.loads(line)
            if isinstance(record, dict) and "record" in record:
                yield record


class PartJournal(Journal):
    """The journal, as the task writes it."""

    def hear(self, event: Event) -> None:
        """Raises OSError."""
        match event:
            case Started():
                self.start(event.case)
            case Row():
                self.row(event)
            case Comparison():
                self.rounds(event)
            case _:
                self._append(remote.to_record(event))

    def done(self) -> None:
        """Every case has its row. Raises OSError."""
        self._append({"record": "done"})


@dataclass(frozen=True)
class Shard:
    """What a task calls: do the part in ``folder`` by a ``Local`` with the fields ``local`` on ``gpus`` GPUs."""

    folder: str
    local: Mapping[str, Any]
    gpus: int

    def __call__(self) -> None:
        """Begin, or go on where a predecessor was stopped. Raises whatever keeps it from that."""
        part = Part(Path(self.folder))
        if part.is_void:
            return
        mine = _journal(part.folder)
        with mine:
            try:
                for event in self._events(part, mine):
                    mine.hear(event)
            except Exception as error:
                mine.hear(Notice(f"{socket.gethostname()}: {one_line(error)}"))
                raise
            mine.done()

    def checkpoint(self) -> Any:
        """For submitit, when the task's time has come or another one takes its place: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _events(self, part: Part, mine: PartJournal) -> Iterator[Event]:
        from submitit import JobEnvironment

        before = journal.load(part.folder)
        mine.starts = dict(before.starts)
        left = [case for case in part.cases if case.key not in before.rows]
        first: list[Case] = []
        suspects: list[Case] = []
        for case in left:
            deaths, starts = before.deaths.get(case.key, 0), before.starts.get(case.key, 0)
            if deaths >= MOST_DEATHS:
                yield remote.lost(case, "in flight when its task died, for the second time")
            elif starts - deaths >= MOST_STARTS:
                yield remote.lost(case, f"begun {starts} times, and no task had the time for it (launcher.time_min)")
            else:
                (suspects if deaths else first).append(case)
        if first or suspects:
            facts = {"job": JobEnvironment().job_id}
            log = str(part.folder / "worker.log")
            yield from remote.serve(self.local, [*first, *suspects], log, self.gpus, facts)


def _journal(folder: Path) -> PartJournal:
    """Raises BadInput if a predecessor does not end."""
    deadline = time.monotonic() + DYING_S
    while True:
        try:
            return PartJournal(folder)
        except BadInput:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
