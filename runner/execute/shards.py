"""Parts of ``launcher=ray`` and ``launcher=slurm``: a ledger of cases, and a ``Local`` on each machine.

The ``Local`` handles the deaths of workers, and the launcher the deaths of machines.
"""

import importlib.util
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..device import gpus
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.grouping import grouped
from ..records.row import Row
from ..store.fingerprint import Fingerprints
from ..store.resume import MOST_DEATHS, lost_row
from . import CannotStart, Event, Limits, Notice, Ready, Started
from .local import Local

JOB = re.compile(r"\d+(_\d+)?|DEBUG_\d+")  # number of a job, for scancel
MOST_DEATHS_IN_A_ROW = 3  # deaths of machines or tasks without a row in between; then no other is started
MOST_STARTS = 6  # starts of a case without a row, in tasks that reached their time limit


def need(package: str, extra: str) -> None:
    """Raise BadInput if ``package``, which ``launcher=<extra>`` needs, is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a plain folder of that name has no origin
        raise BadInput(f"launcher={extra} needs the package {package}: pip install -e '.[{extra}]' in the checkout")


def one_line(error: BaseException) -> str:
    """Return the type of ``error`` and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def problems(cases: Iterable[CaseRecord]) -> list[list[CaseRecord]]:
    """Group ``cases`` by problem, including replicas, since they run on one machine to be comparable."""
    return list(grouped(cases, lambda case: case.problem).values())


def gpus_needed(cases: Sequence[CaseRecord], least: int) -> int:
    """Return the GPUs of a shard, all on one node: ``least``, or one for each rank; 0 if all cases are on the CPU."""
    ranks = [case.ranks for case in cases if case.settings.device != "cpu"]
    return max(least, *ranks) if least and ranks else 0


def local(limits: Limits, gpus: int, precompile: int | None = None) -> Local:
    """Return the ``Local`` for each machine: on all GPUs that are visible there, or on the CPU for 0 ``gpus``."""
    values = {field.name: getattr(limits, field.name) for field in fields(Limits)}
    return Local(gpus="all" if gpus else 0, precompile=precompile, **values)


class Holder:
    """An actor or a task, with its cases, and its cases without a row."""

    def __init__(self, name: str, cases: Iterable[CaseRecord] = ()) -> None:
        self.name = name
        self.give(cases)

    def give(self, cases: Iterable[CaseRecord]) -> None:
        """Replace its cases by ``cases``."""
        self.given = {case.key: case for case in cases}
        self.owed = dict(self.given)
        self.begun: set[str] = set()


class Ledger:
    """Knows which holder owes which case, and which cases no holder has.

    A case that was in flight when its holder died is run again, after all others and alone. If it is in flight at
    another death, its row is ``lost``.
    """

    def __init__(self) -> None:
        self.problems: deque[list[CaseRecord]] = deque()
        self.begun: Counter[str] = Counter()  # how often each case was started
        self.deaths_in_a_row = 0  # deaths of holders without a row in between
        self._suspects: deque[CaseRecord] = deque()
        self._deaths: Counter[str] = Counter()

    def add(self, cases: Iterable[CaseRecord]) -> None:
        """Add ``cases`` that no holder has."""
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
        """Deal all problems to at most ``hands`` tasks in turn, since neighbors in a grid take about the same time."""
        dealt = [[*self.problems][place::hands] for place in range(min(hands, len(self.problems)))]
        self.problems.clear()
        return [_in_order(hand) for hand in dealt]

    def note(self, holder: Holder, event: Event) -> Event | None:
        """Note the start or the row of a case. Return ``event``, or None for a second row after one start."""
        if isinstance(event, Started):
            holder.begun.add(event.case.key)
            holder.owed[event.case.key] = event.case  # even if it has a row from another GPU, on which the task began
            self.begun[event.case.key] += 1
        elif isinstance(event, Row):
            self.deaths_in_a_row = 0
            return event if holder.owed.pop(event.case.key, None) else None
        return event

    def died(self, holder: Holder, cause: str) -> Iterator[Event]:
        """Take back the cases of ``holder``, which has died. ``cause`` is a part of the reason of lost rows."""
        owed = [*holder.owed.values()]
        in_flight = [case for case in owed if case.key in holder.begun] or owed[:1]  # its last event may be lost
        self._deaths.update(case.key for case in in_flight)
        self.deaths_in_a_row += 1
        given_up = [case for case in owed if self._deaths[case.key] >= MOST_DEATHS]
        for case in given_up:
            self.deaths_in_a_row = 0
            yield lost_row(case, f"in flight when its process died, for the second time: {holder.name}, {cause}")
        again = [case for case in owed if case not in given_up]
        self._suspects.extend(case for case in again if self._deaths[case.key])
        self.problems.extendleft(reversed(problems(case for case in again if not self._deaths[case.key])))
        yield Notice(f"{holder.name} has died: {cause}" + (f"; cases left for another: {len(again)}" if again else ""))


def _in_order(problems: Iterable[Sequence[CaseRecord]]) -> list[CaseRecord]:
    """Return the cases of ``problems``, sorted by replica."""
    return sorted((case for problem in problems for case in problem), key=lambda case: case.replica)


def serve(machine: Local, cases: Sequence[CaseRecord], log_path: str, facts: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of ``cases`` on this machine: on all GPUs that this process sees, or on the CPU.

    Environments get the host's name and ``facts``, rows their fingerprint. Raises CannotStart, also without a GPU.
    """
    host = socket.gethostname()
    if machine.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif reason := gpus.query_gpus()[1]:
        raise CannotStart(reason)
    fingerprints = Fingerprints()
    for event in machine.run(cases, log_path):
        match event:
            case Ready():
                yield replace(event, environment={"hostname": host, **facts, **event.environment})
            case Notice():
                yield Notice(f"{host}: {event.text}")
            case Row():
                yield replace(event, fingerprint=fingerprints.of_row(event))
            case _:
                if isinstance(event, Started):
                    fingerprints.of(event.case)  # the sources as they are now
                yield event
