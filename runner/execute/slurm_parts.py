"""Folder of a Slurm task, through which the task and the runner communicate."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from ..device import gpus
from ..device.gpus import Gpu
from ..records import untrusted
from ..records.case import CaseRecord
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..records.schema import UNREADABLE, check
from ..store import journal
from ..store.journal import Journal
from ..store.resume import MOST_DEATHS, lost_row, other_device
from . import Event, Notice, Ready, Started
from .local import Local
from .shards import JOB, MOST_STARTS, one_line, serve


class Part:
    """The folder of a task: cases and job, written by the parent, and a journal, written by the task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0  # bytes of the journal

    @classmethod
    def create(cls, parts: Path, cases: Sequence[CaseRecord]) -> Self:
        """Create the folder with the next number under ``parts``."""
        number = 1 + max((int(path.name) for path in parts.glob("[0-9]*")), default=-1)
        part = cls(parts / f"{number:03}")
        part.folder.mkdir(parents=True)
        lines = [json.dumps(case.to_record()) for case in cases]
        (part.folder / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return part

    @property
    def cases(self) -> list[CaseRecord]:
        """The cases of the task; [] if their writer was killed, before there was a task."""
        try:
            lines = (self.folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()
            return [CaseRecord.from_record(orjson.loads(line)) for line in lines]
        except (OSError, *UNREADABLE):
            return []

    @property
    def job(self) -> dict[str, str]:
        """The content of ``job.json``: the job's number and its cluster; {} without one."""
        try:
            record = orjson.loads((self.folder / "job.json").read_text(encoding="utf-8"))
            return {"job": JOB.fullmatch(record["job"])[0], "cluster": record["cluster"]}  # type: ignore[index]
        except (OSError, *UNREADABLE):
            return {}

    @job.setter
    def job(self, facts: Mapping[str, str]) -> None:
        (self.folder / "job.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")

    def new_records(self) -> list[dict[str, Any]]:
        """Return the records of the journal since the last call.

        An incomplete record is left for the next call. NFS may show zeros before the content of a file.
        """
        try:
            with open(self.folder / journal.NAME, "rb") as file:
                file.seek(self._read)
                text = file.read().partition(b"\0")[0]
        except OSError:  # it does not exist yet or cannot be read now
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        records = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # a kill has cut it off
                records.append(untrusted.parse(line))
        return [record for record in records if isinstance(record, dict) and "record" in record]


class PartJournal(Journal):
    """The journal of a task, which also holds the events that the parent shows."""

    def write(self, event: Event) -> None:
        """Append ``event``. Raises OSError."""
        match event:
            case Started():
                self.start(event.case)
            case Row():
                self.row(event)
            case PairedRounds():
                self.rounds(event)
            case Notice() | Ready():
                self._append({"record": type(event).__name__.lower(), **asdict(event)})

    def done(self) -> None:
        """Append that each case has its row. Raises OSError."""
        self._append({"record": "done"})


def event_of(record: Mapping[str, Any], cases: Mapping[str, CaseRecord]) -> Event | None:
    """Return the event in a task's ``record``; None if it has none, is malformed, or of a case not in ``cases``."""
    values = {name: value for name, value in record.items() if name != "record"}
    with contextlib.suppress(*UNREADABLE):
        if values.get("key", "") not in {"", *cases}:
            return None
        match record["record"]:
            case "ready":
                check(Gpu, values["gpu"] or {})
                return Ready({**values["environment"]}, None if values["gpu"] is None else Gpu(**values["gpu"]))
            case "notice":
                return Notice(str(values["text"]))
            case "start":
                return Started(cases[values["key"]])
            case "row":
                return Row.from_record(values)
            case "rounds" if values["batches_us"].keys() <= cases.keys():
                return PairedRounds.from_record(values)
    return None


@dataclass(frozen=True)
class Shard:
    """The function of a Slurm task: run the cases of the part in ``folder`` by ``local``."""

    folder: str
    local: Local

    def __call__(self) -> None:
        """Begin, or continue after an earlier task."""
        part = Part(Path(self.folder))
        with PartJournal(part.folder) as task_journal:
            try:
                for event in self._events(part, task_journal):
                    task_journal.write(event)
            except Exception as error:
                task_journal.write(Notice(f"{socket.gethostname()}: {one_line(error)}"))
                raise
            task_journal.done()

    def checkpoint(self) -> Any:
        """Return the same task for submitit to queue when it reaches its time limit or is preempted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _events(self, part: Part, task_journal: PartJournal) -> Iterator[Event]:
        from submitit import JobEnvironment

        before = journal.load(part.folder)
        task_journal.starts = before.starts.copy()
        remaining: list[CaseRecord] = []
        devices = gpus.gpu_names(gpus.visible()) if before.rows and self.local.gpus else None
        if not (cases := part.cases):  # on this machine, since their writer has submitted this task
            raise OSError(f"{part.folder}/cases.jsonl cannot be read")
        for case in cases:
            deaths, starts = before.deaths[case.key], before.starts[case.key]
            if (row := before.rows.get(case.key)) and not other_device(row, devices):
                continue
            if deaths >= MOST_DEATHS:
                yield lost_row(case, "in flight when its task died, for the second time")
            elif starts - deaths >= MOST_STARTS:
                limit = "the time limit of a task (launcher.time_min)"
                yield lost_row(case, f"begun {starts} times, but never finished within {limit}")
            else:
                remaining.append(case)
        remaining.sort(key=lambda case: before.deaths[case.key])  # cases that may have killed the task come last
        if remaining:
            yield from serve(self.local, remaining, str(part.folder / "worker.log"), {"job": JobEnvironment().job_id})
