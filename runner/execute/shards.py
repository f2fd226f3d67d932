"""What launchers of several machines share: a ``Local`` on each of them, and how its events travel.

So whatever happens to a worker is dealt with in one place, on the machine where it happens. What is left for the
launcher itself is that a whole machine may go.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.device import gpus
from runner.device.gpus import Gpu
from runner.execute import CannotStart, Event, Notice, Ready, Started
from runner.execute.local import Local, Seconds
from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.store import journal
from runner.store.fingerprint import Fingerprints
from runner.store.journal import Journal

MOST_DEATHS = 2  # of machines or tasks with the same case in flight: it may be the case that kills them
MOST_DEATHS_IN_A_ROW = 3  # of machines or tasks, without a row in between: then no other one is started


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Those of the ``Local`` on each machine."""

    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds

    def local(self, gpus: int, ahead: int | None = None) -> dict[str, Any]:
        """The fields of a ``Local`` that uses all the ``gpus`` which it is shown, JSON-ready."""
        names = Limits.__dataclass_fields__
        return {"gpus": "all" if gpus else 0, "precompile": ahead} | {name: getattr(self, name) for name in names}


def need(package: str, extra: str) -> None:
    """Raises BadInput if ``package``, which ``launcher=<extra>`` needs, is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a mere folder of that name has no origin
        raise BadInput(f"launcher={extra} needs the package {package}: pip install -e '.[{extra}]' in the checkout")


def problems(cases: Iterable[CaseRecord]) -> list[list[CaseRecord]]:
    """The cases of each problem, replicas included: they run on one machine, so that they compare."""
    found: dict[str, list[CaseRecord]] = {}
    for case in cases:
        found.setdefault(case.problem, []).append(case)
    return list(found.values())


class Holder:
    """An actor or a task: the cases that it was given, and those that it still owes a row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.give(())

    def give(self, cases: Iterable[CaseRecord]) -> None:
        """From now on it has ``cases`` alone."""
        self.given = {case.key: case for case in cases}
        self.owed = dict(self.given)
        self.begun: Counter[str] = Counter()


class Ledger:
    """Who owes which case, and what is still to be given out.

    A case that was in flight when its holder died goes to another one, last; the second time its row is ``lost``.
    """

    def __init__(self) -> None:
        self.problems: deque[list[CaseRecord]] = deque()
        self.begun: Counter[str] = Counter()  # how often each case was started
        self.deaths_in_a_row = 0  # of holders, without a row in between
        self._suspects: deque[CaseRecord] = deque()
        self._deaths: Counter[str] = Counter()

    def add(self, cases: Iterable[CaseRecord]) -> None:
        """``cases`` are to be given out."""
        self.problems.extend(problems(cases))

    @property
    def left(self) -> int:
        """Problems and suspects that nobody has."""
        return len(self.problems) + len(self._suspects)

    def take(self, count: int) -> list[CaseRecord]:
        """The next ``count`` problems; after the last problem, one suspect alone; [] if nothing is left."""
        if self.problems:
            return _in_order([self.problems.popleft() for _ in range(min(count, len(self.problems)))])
        return [self._suspects.popleft()] if self._suspects else []

    def deal(self, hands: int) -> list[list[CaseRecord]]:
        """All problems, in turn to at most ``hands`` tasks: neighbours in a grid take about the same time."""
        dealt = [[*self.problems][place::hands] for place in range(min(hands, len(self.problems)))]
        self.problems.clear()
        return [_in_order(hand) for hand in dealt]

    def hear(self, holder: Holder, record: Mapping[str, Any]) -> Event | None:
        """The event that ``record`` holds; None if it is none. Raises ValueError, KeyError, TypeError."""
        event = from_record(record, holder.given)
        if isinstance(event, Started):
            holder.begun[event.case.key] += 1
            self.begun[event.case.key] += 1
        elif isinstance(event, Row):
            self.deaths_in_a_row = 0
            return event if holder.owed.pop(event.case.key, None) else None
        return event

    def died(self, holder: Holder, how: str) -> Iterator[Event]:
        """Take back what ``holder`` owes. ``how`` it died, in words; it ends the reason of a lost row."""
        owed = [*holder.owed.values()]
        in_flight = [case for case in owed if holder.begun[case.key]] or owed[:1]  # its last word may be lost
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
    """The cases of problems, a replica after the other."""
    return sorted((case for problem in found for case in problem), key=lambda case: case.replica)


def serve(
    local: Mapping[str, Any], cases: Sequence[CaseRecord], log_path: str, count: int, facts: Mapping[str, Any]
) -> Iterator[Event]:
    """On the machine itself: the events of ``cases``, on the ``count`` GPUs that this process is shown, 0: the CPU.

    Rows say what they were made with here; environments tell the host, and ``facts``. Raises CannotStart, also if GPUs
    are asked for and none is there.
    """
    host = socket.gethostname()
    if not count:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif why := gpus.look()[1]:
        raise CannotStart(why)
    made_with = Fingerprints()
    for event in Local(**local).run(cases, log_path):
        match event:
            case Ready():
                yield replace(event, environment={"hostname": host, **facts, **event.environment})
            case Notice():
                yield Notice(f"{host}: {event.text}")
            case Started():
                made_with.of(event.case)
                yield event
            case Row():
                yield replace(event, fingerprint=made_with.of_row(event.case))
            case Comparison():
                yield event


def to_record(event: Event) -> dict[str, Any]:
    """``event`` as JSON-ready values under ``record``, the kind it is, as a journal has them."""
    match event:
        case Ready():
            gpu = None if event.gpu is None else asdict(event.gpu)
            return {"record": "ready", "environment": event.environment, "gpu": gpu}
        case Notice():
            return {"record": "notice", "text": event.text}
        case Started():
            return {"record": "start", "key": event.case.key}
        case Row():
            return {"record": "row", **event.to_record()}
        case Comparison():
            return {"record": "rounds", **event.to_record()}


def from_record(record: Mapping[str, Any], cases: Mapping[str, CaseRecord]) -> Event | None:
    """The inverse; None if it is another record, or of none of ``cases``. Raises ValueError, KeyError, TypeError."""
    values = {name: value for name, value in record.items() if name not in ("record", "end")}  # as a journal spells it
    match record["record"]:
        case "ready":
            return Ready(values["environment"], None if values["gpu"] is None else Gpu(**values["gpu"]))
        case "notice":
            return Notice(values["text"])
        case "start":
            return Started(cases[values["key"]]) if values["key"] in cases else None
        case "row":
            return Row.from_record(values) if values["key"] in cases else None
        case "rounds":
            rounds = Comparison.from_record(values)
            return rounds if rounds.batches_us.keys() <= cases.keys() else None
    return None


def lost(case: CaseRecord, why: str, detail: str = "") -> Row:
    """The row of a case whose machine has gone, and that is not to be tried again."""
    return Row(
        case=case, status="lost", reason=f"{why}; to try again: resume.retry=[lost]", phase="plan", detail=detail
    )


def one_line(error: BaseException) -> str:
    """The first line that says something, for a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


MOST_STARTS = 6  # without a row, and yet no death: each time the task's own time had come
DYING_S = 60.0  # that a predecessor on another node may hold the journal


class Part:
    """The folder, as the parent sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0  # bytes of the journal

    @classmethod
    def create(cls, parts: Path, cases: Sequence[CaseRecord]) -> Part:
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
    def cases(self) -> list[CaseRecord]:
        """Raises OSError, ValueError, KeyError, TypeError: its writer was killed."""
        lines = (self.folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()
        return [CaseRecord.from_record(json.loads(line)) for line in lines]

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
                self._append(to_record(event))

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
        first: list[CaseRecord] = []
        suspects: list[CaseRecord] = []
        for case in left:
            deaths, starts = before.deaths.get(case.key, 0), before.starts.get(case.key, 0)
            if deaths >= MOST_DEATHS:
                yield lost(case, "in flight when its task died, for the second time")
            elif starts - deaths >= MOST_STARTS:
                yield lost(case, f"begun {starts} times, and no task had the time for it (launcher.time_min)")
            else:
                (suspects if deaths else first).append(case)
        if first or suspects:
            facts = {"job": JobEnvironment().job_id}
            log = str(part.folder / "worker.log")
            yield from serve(self.local, [*first, *suspects], log, self.gpus, facts)


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
