"""What ``launcher=ray`` and ``launcher=slurm`` share: who has which case, and a ``Local`` on each machine.

The ``Local`` deals with whatever happens to a worker. What is left for the launcher is that a whole machine may die.
The second half of this file is the folder through which a task of Slurm and its parent talk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.execute import CannotStart, Event, Limits, Notice, Ready, Started
from runner.execute.local import Local
from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import UNREADABLE, BadInput, check
from runner.store import journal
from runner.store.fingerprint import Fingerprints
from runner.store.journal import Journal
from runner.store.resume import other_device

JOB = re.compile(r"\d+(_\d+)?|DEBUG_\d+")  # the number of a job, which scancel takes
MOST_DEATHS = 2  # of machines or tasks with the same case in flight: the case may kill them
MOST_DEATHS_IN_A_ROW = 3  # of machines or tasks, without a row in between, after which no other one is started
MOST_STARTS = 6  # of a case without a row, in tasks that reached their time limit


def need(package: str, extra: str) -> None:
    """Raise BadInput if ``package``, which ``launcher=<extra>`` needs, is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a mere folder of that name has no origin
        raise BadInput(f"launcher={extra} needs the package {package}: pip install -e '.[{extra}]' in the checkout")


def one_line(error: BaseException) -> str:
    """Return the type of ``error`` and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def problems(cases: Iterable[CaseRecord]) -> list[list[CaseRecord]]:
    """Group ``cases`` by problem, replicas included: they run on one machine, so that they compare."""
    found: dict[str, list[CaseRecord]] = {}
    for case in cases:
        found.setdefault(case.problem, []).append(case)
    return list(found.values())


def local(limits: Limits, gpus: int, precompile: int | None = None) -> Local:
    """Return the ``Local`` for each machine: on all GPUs that it is given, or on the CPU for 0 ``gpus``."""
    values = {field.name: getattr(limits, field.name) for field in fields(Limits)}
    return Local(gpus="all" if gpus else 0, precompile=precompile, **values)


class Holder:
    """An actor or a task, with the cases that it was given and those that have no row yet."""

    def __init__(self, name: str, cases: Iterable[CaseRecord] = ()) -> None:
        self.name = name
        self.give(cases)

    def give(self, cases: Iterable[CaseRecord]) -> None:
        """Replace its cases by ``cases``."""
        self.given = {case.key: case for case in cases}
        self.owed = dict(self.given)
        self.begun: set[str] = set()


class Ledger:
    """Says which holder owes which case, and which cases are still to be given out.

    A case that was in flight when its holder died is given out once more, after all others and alone. If it is in
    flight at another death, its row is ``lost``.
    """

    def __init__(self) -> None:
        self.problems: deque[list[CaseRecord]] = deque()
        self.begun: Counter[str] = Counter()  # how often each case was started
        self.deaths_in_a_row = 0  # of holders, without a row in between
        self._suspects: deque[CaseRecord] = deque()
        self._deaths: Counter[str] = Counter()

    def add(self, cases: Iterable[CaseRecord]) -> None:
        """Add ``cases`` to those that are to be given out."""
        self.problems.extend(problems(cases))

    @property
    def left(self) -> int:
        """Number of problems and suspects that no holder has."""
        return len(self.problems) + len(self._suspects)

    def take(self, count: int) -> list[CaseRecord]:
        """Return the next ``count`` problems; after the last problem, one suspect; [] if nothing is left."""
        if self.problems:
            return _in_order([self.problems.popleft() for _ in range(min(count, len(self.problems)))])
        return [self._suspects.popleft()] if self._suspects else []

    def deal(self, hands: int) -> list[list[CaseRecord]]:
        """Deal all problems out to at most ``hands`` tasks in turn: neighbors in a grid take about the same time."""
        dealt = [[*self.problems][place::hands] for place in range(min(hands, len(self.problems)))]
        self.problems.clear()
        return [_in_order(hand) for hand in dealt]

    def note(self, holder: Holder, event: Event) -> Event | None:
        """Note the start or the row of a case. Return ``event``, or None for a second row after one start."""
        if isinstance(event, Started):
            holder.begun.add(event.case.key)
            holder.owed[event.case.key] = event.case  # also if it has a row, of another GPU on which the task began
            self.begun[event.case.key] += 1
        elif isinstance(event, Row):
            self.deaths_in_a_row = 0
            return event if holder.owed.pop(event.case.key, None) else None
        return event

    def died(self, holder: Holder, how: str) -> Iterator[Event]:
        """Take back the cases of ``holder``, which has died; ``how`` ends the reason of lost rows."""
        owed = [*holder.owed.values()]
        in_flight = [case for case in owed if case.key in holder.begun] or owed[:1]  # its last event may be lost
        self._deaths.update(case.key for case in in_flight)
        self.deaths_in_a_row += 1
        given_up = [case for case in owed if self._deaths[case.key] >= MOST_DEATHS]
        for case in given_up:
            self.deaths_in_a_row = 0
            yield lost(case, f"in flight when its process died, for the second time: {holder.name}, {how}")
        again = [case for case in owed if case not in given_up]
        self._suspects.extend(case for case in again if self._deaths[case.key])
        self.problems.extendleft(reversed(problems(case for case in again if not self._deaths[case.key])))
        yield Notice(f"{holder.name} has died: {how}" + (f"; cases left for another: {len(again)}" if again else ""))


def _in_order(found: Iterable[Sequence[CaseRecord]]) -> list[CaseRecord]:
    """Return the cases of the problems ``found``, one replica after the other."""
    return sorted((case for problem in found for case in problem), key=lambda case: case.replica)


def lost(case: CaseRecord, why: str) -> Row:
    """Return the row of a case that is given up since its machine or task died."""
    return Row(case=case, status="lost", reason=f"{why}; to try again: resume.retry=[lost]", phase="plan")


def serve(machine: Local, cases: Sequence[CaseRecord], log_path: str, facts: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of ``cases`` on this machine: on all GPUs that this process sees, or on the CPU.

    Environments get the host's name and ``facts``, rows their fingerprint. Raises CannotStart, also if there is no GPU.
    """
    host = socket.gethostname()
    if machine.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif why := gpus.look()[1]:
        raise CannotStart(why)
    fingerprints = Fingerprints()
    for event in machine.run(cases, log_path):
        match event:
            case Ready():
                yield replace(event, environment={"hostname": host, **facts, **event.environment})
            case Notice():
                yield Notice(f"{host}: {event.text}")
            case Row():
                yield replace(event, fingerprint=fingerprints.of_row(event.case))
            case _:
                if isinstance(event, Started):
                    fingerprints.of(event.case)  # the sources as they are now
                yield event


class Part:
    """The folder of a task: its cases and its job, which the parent writes, and a journal, which the task writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0  # bytes of the journal

    @classmethod
    def create(cls, parts: Path, cases: Sequence[CaseRecord]) -> Part:
        """Create the folder with the next number under ``parts``."""
        number = 1 + max((int(path.name) for path in parts.glob("[0-9]*")), default=-1)
        part = cls(parts / f"{number:03}")
        part.folder.mkdir(parents=True)
        lines = [json.dumps(case.to_record()) for case in cases]
        (part.folder / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return part

    @property
    def cases(self) -> list[CaseRecord]:
        """The cases of the task. Raises OSError or one of UNREADABLE if its writer was killed."""
        lines = (self.folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()
        return [CaseRecord.from_record(orjson.loads(line)) for line in lines]

    @property
    def job(self) -> dict[str, str]:
        """The content of ``job.json``: the job's number and its cluster; {} without one."""
        try:
            found = orjson.loads((self.folder / "job.json").read_text(encoding="utf-8"))
            return {"job": JOB.fullmatch(found["job"])[0], "cluster": found["cluster"]}  # type: ignore[index]
        except (OSError, *UNREADABLE):
            return {}

    @job.setter
    def job(self, facts: Mapping[str, str]) -> None:
        (self.folder / "job.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")

    def new_records(self) -> list[dict[str, Any]]:
        """Return the records of the journal that have appeared since the last call.

        An incomplete record is left for the next call. NFS may show the length of a file before its content, as zeros.
        """
        try:
            with open(self.folder / journal.NAME, "rb") as file:
                file.seek(self._read)
                text = file.read().partition(b"\0")[0]
        except OSError:  # it does not exist yet, or cannot be read at the moment
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        found = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # a kill has cut it off
                found.append(orjson.loads(line))
        return [record for record in found if isinstance(record, dict) and "record" in record]


class PartJournal(Journal):
    """The journal of a task. It also keeps the events that the parent shows."""

    def write(self, event: Event) -> None:
        """Raises OSError."""
        match event:
            case Started():
                self.start(event.case)
            case Row():
                self.row(event)
            case Comparison():
                self.rounds(event)
            case Notice():
                self._append({"record": "notice", "text": event.text})
            case Ready():
                gpu = None if event.gpu is None else asdict(event.gpu)
                self._append({"record": "ready", "environment": event.environment, "gpu": gpu})

    def done(self) -> None:
        """Note that each case has its row. Raises OSError."""
        self._append({"record": "done"})


def event_of(record: Mapping[str, Any], cases: Mapping[str, CaseRecord]) -> Event | None:
    """Return the event in a task's ``record``.

    None for another record, or if its case is none of ``cases``, or if another version of the runner has written it.
    """
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
                return Comparison.from_record(values)
    return None


@dataclass(frozen=True)
class Shard:
    """What a task of Slurm calls: run the cases of the part in ``folder`` by ``local``."""

    folder: str
    local: Local

    def __call__(self) -> None:
        """Begin, or continue after a predecessor. Raises whatever prevents that."""
        part = Part(Path(self.folder))
        with PartJournal(part.folder) as mine:
            try:
                for event in self._events(part, mine):
                    mine.write(event)
            except Exception as error:
                mine.write(Notice(f"{socket.gethostname()}: {one_line(error)}"))
                raise
            mine.done()

    def checkpoint(self) -> Any:
        """Return what submitit queues when the task reaches its time limit or is preempted: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _events(self, part: Part, mine: PartJournal) -> Iterator[Event]:
        from submitit import JobEnvironment

        before = journal.load(part.folder)
        mine.starts = dict(before.starts)
        left: list[CaseRecord] = []
        here = gpus.names(gpus.visible()) if before.rows and self.local.gpus else None
        for case in part.cases:
            deaths, starts = before.deaths.get(case.key, 0), before.starts.get(case.key, 0)
            if (row := before.rows.get(case.key)) and not other_device(row, here):
                continue
            if deaths >= MOST_DEATHS:
                yield lost(case, "in flight when its task died, for the second time")
            elif starts - deaths >= MOST_STARTS:
                yield lost(case, f"begun {starts} times, and no task had the time for it (launcher.time_min)")
            else:
                left.append(case)
        left.sort(key=lambda case: before.deaths.get(case.key, 0))  # what may have killed the task comes last
        if left:
            yield from serve(self.local, left, str(part.folder / "worker.log"), {"job": JobEnvironment().job_id})
