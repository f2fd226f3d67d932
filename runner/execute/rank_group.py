"""The parent's side of the ranks of a case: one worker process each, which run the case together."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..device.exchange import MeetingPlace
from ..device.gpus import Gpu
from ..records.case import CaseRecord
from ..records.row import Phase
from .spawn import DYING_S, Gone, Source
from .worker_process import WorkerProcess

GRACE_S = 1.0  # from the first failed row until the others, which may wait for that rank, are killed
# Parts of a stack: a rank with one of them waits for another.
WAITS = ("/torch/distributed/", "/timing/ranks.py", "/device/exchange.py", " in synchronize")


class RankGroup(WorkerProcess):
    """The worker of rank 0, which makes the row, with those of the other ranks. What ends one of them ends all."""

    def __init__(
        self, source: Source, log_path: Path, gpus: Sequence[Gpu], count: int, like: CaseRecord | None = None
    ) -> None:
        self._ranks: list[WorkerProcess] = [self]
        self._answers: dict[int, dict[str, Any]] = {}  # rank → its answer about this case, in the order of arrival
        self._failed_at = 0.0  # when the first failed row came
        self._lost: int | None = None  # the rank that ended first
        self._late: list[int] = []  # ranks for which others waited at the end of a phase
        self._place = MeetingPlace(count)
        super().__init__(source, log_path, gpus, measures=True, like=like, place=(self._place.path, 0, count))
        try:
            for rank in range(1, count):
                log, place = log_path.with_name(f"{log_path.stem}-rank{rank}.log"), (self._place.path, rank, count)
                self._ranks.append(WorkerProcess(source, log, gpus, measures=True, like=like, place=place))
        except BaseException:  # an interrupt too
            self.end()
            raise

    # ``WorkerProcess.f(rank)`` is of one rank, also for rank 0; ``rank.f()`` would be of the whole group.

    @property
    def watched(self) -> list[int]:
        """Descriptors of the ranks that still run and owe an answer."""
        owing = [rank for number, rank in enumerate(self._ranks) if self._owes(number)]
        running = [rank for rank in owing if not WorkerProcess.has_ended(rank)]
        return [descriptor for rank in running for descriptor in rank.descriptors()]

    def _owes(self, number: int) -> bool:
        """Return whether a rank must still answer or end. One that has answered may end, as it does if spoiled."""
        return self.dying or number not in self._answers

    @property
    def phase(self) -> Phase:
        """The current phase of rank 0, or the last one of the rank that was lost."""
        return self._ranks[self._lost or 0].due.phase

    def has_ended(self) -> bool:
        """Return whether all ranks have ended."""
        return all(WorkerProcess.has_ended(rank) for rank in self._ranks)

    def pause(self, paused: bool) -> None:
        """Stop all ranks, or let them continue."""
        for rank in self._ranks:
            WorkerProcess.pause(rank, paused)

    def ask(self, message: object, phase: Phase, limit_s: float, case: CaseRecord | None = None) -> None:
        """Send a message that every rank answers. Raises Gone."""
        self._answers = {}
        for number, rank in enumerate(self._ranks):
            rank.cases, rank.timed = self.cases, self.timed
            try:
                WorkerProcess.ask(rank, message, phase, limit_s, case)
            except Gone as gone:
                raise self._killed(_of_rank(number, gone)) from None

    def receive(self) -> dict[str, Any] | None:
        """Return the next message of rank 0 about its phase, or the answer of all ranks. See WorkerProcess."""
        for number in (*range(1, len(self._ranks)), 0):
            rank = self._ranks[number]
            if self._lost is not None or not self._owes(number):
                continue
            try:
                while self._owes(number) and not rank.dying and (message := WorkerProcess.receive(rank)):
                    if "phase" not in message:
                        self._take(number, message)
                    elif rank is self:
                        return message
                    else:
                        rank.enter(message["phase"], 0.0)
            except Gone as gone:
                self._lose(number)
                raise Gone(_of_rank(number, gone)) from None
            if self._owes(number) and (rank.dying or WorkerProcess.has_ended(rank)):
                self._lose(number)
        return self._answer() if self._lost is None else None

    def _take(self, number: int, message: dict[str, Any]) -> None:
        self._answers[number] = message
        if _failed(message) and not self._failed_at:
            self._failed_at = time.monotonic()

    def _answer(self) -> dict[str, Any] | None:
        """Return the answer of the ranks. None if it is not known yet.

        It is that of the first rank that failed, else of the lowest with side effects, else of rank 0.
        """
        answers, complete = [*self._answers.values()], len(self._answers) == len(self._ranks)
        if full := next((message for message in answers if "full" in message), None):
            return full
        rank = next((rank for rank, message in self._answers.items() if _failed(message)), None)
        if not complete and (rank is None or time.monotonic() < self._failed_at + GRACE_S):
            return None
        self._failed_at = 0.0
        if rank is None and "row" not in self._answers[0]:
            return self._answers[0]
        if rank is None:
            changed = [rank for rank, answer in self._answers.items() if answer["row"].metrics.get("side_effects")]
            rank = min(changed, default=0)
        if "row" not in self._answers[rank]:
            rounds = self._answers[rank]["rounds"]
            reason = rounds.reason and f"rank {rank}: {rounds.reason}"
            return {"rounds": replace(rounds, reason=reason), "spoiled": not complete}  # the others wait for it
        row = self._answers[rank]["row"]
        same = complete and len({(message["row"].status, message["row"].reason) for message in answers}) == 1
        reason = row.reason if same else f"rank {rank}: {row.reason}"
        spoiled = not same or any(message["spoiled"] for message in answers)
        metrics, changes = dict(row.metrics), {message["row"].metrics.get("side_effects") for message in answers}
        if rank and len(changes) > 1 and "side_effects" in metrics:
            metrics["side_effects"] = f"rank {rank}: {metrics['side_effects']}"
        row = replace(row, reason=reason, metrics=metrics)
        return {**self._answers[rank], "row": row, "spoiled": spoiled}

    def _lose(self, number: int) -> None:
        """Kill all ranks, since this one has ended or keeps the others waiting."""
        self._lost = number
        with suppress(Gone):
            self.kill()

    def kill(self) -> None:
        """Kill all ranks without waiting for their ends. Raises Gone if rank 0 has ended."""
        for rank in self._ranks[1:]:
            with suppress(Gone):
                rank.kill()
        super().kill()

    def end(self, limit_s: float = DYING_S) -> str:
        """Kill all ranks and wait up to ``limit_s`` for each. Return how the first of them ended, as a sentence."""
        if not self.ended:
            ends = [WorkerProcess.end(rank, limit_s) for rank in self._ranks]
            self.stuck = any(rank.stuck for rank in self._ranks)
            self.ended = _of_rank(self._lost or 0, ends[self._lost or 0])
            self._place.close()
        return self.ended

    def print_stacks(self) -> str:
        """Make all ranks print their stacks. Return the ranks for which others wait, as ``" on rank 1"``."""
        for rank in self._ranks:
            WorkerProcess.print_stacks(rank)
        stacks = [WorkerProcess.printed(rank) for rank in self._ranks]
        self._late = [number for number, stack in enumerate(stacks) if not any(frame in stack for frame in WAITS)]
        if not self._late:
            return ", since all ranks wait: each must call the same collectives in the same order"
        return f" on rank {' and '.join(map(str, self._late))}" if len(self._late) < len(stacks) else ""

    def printed(self) -> str:
        """Return the output of the rank that was lost, or of all ranks: first of those for which others wait."""
        texts = [WorkerProcess.printed(rank) for rank in self._ranks]
        if self._lost is not None:
            return texts[self._lost]
        order = sorted(range(len(texts)), key=lambda number: number not in self._late)
        return "".join(f"rank {number}:\n{texts[number]}\n" for number in order if texts[number])

    def cut_log(self) -> None:
        """See WorkerProcess."""
        for rank in self._ranks:
            WorkerProcess.cut_log(rank)


def _of_rank(number: int, end: object) -> str:
    """Return a sentence about a rank whose worker has ended."""
    return str(end).replace("the worker", f"rank {number}")


def _failed(message: dict[str, Any]) -> bool:
    """Return whether a rank may keep the others waiting after this answer."""
    row, rounds = message.get("row"), message.get("rounds")
    return row.status not in ("ok", "wrong") if row else bool(rounds and not rounds.batches_us)
