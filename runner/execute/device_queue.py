"""A set of GPUs, or the CPU, with a worker that runs one case at a time and is replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import implementations
from ..device import processes
from ..device.gpus import Gpu
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Scalar
from ..records.paired_rounds import PairedRounds
from ..records.plain_text import printable
from ..records.redaction import clip
from ..records.row import Phase, Row, Status
from . import Event, Limits, Notice, Ready, Started
from .rank_group import RankGroup
from .spawn import Gone, Source
from .worker_process import IDLE, WorkerProcess

MOST_STARTS = 2  # failed starts in a row after which the device is out of service
SMALL_BYTES = 16 * 2**30  # on a GPU with less memory, a spare worker's CUDA context would take memory that cases need
TIMED: tuple[Phase, ...] = ("measure", "compare")  # phases in which nothing else may run on the device
DOUBTFUL = ("error", "build_failed", "timeout", "wrong")  # code of an earlier case may be the cause
THROWN = re.compile(r"terminate called after .*\n *what\(\): *(.+)")  # by C++: an exception that nothing catches
STUCK = "a killed worker has not ended and holds it: see dmesg; a reboot may be needed"


class DeviceQueue:
    """Yields a row for each case of ``take()``, which returns the cases of the next problem, or none at the end.

    ``gpus`` are the devices of each case; empty for the CPU. ``shared`` describes other processes on them. ``ranks``
    processes run a case together; 0: a worker runs it alone.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        sources: Sequence[Source],
        log_path: Path,
        limits: Limits,
        take: Callable[[DeviceQueue], Sequence[CaseRecord]],
        make_room: Callable[[Sequence[Gpu]], bool],
        shared: str = "",
        ranks: int = 0,
    ) -> None:
        self.gpus = gpus
        self.block: deque[CaseRecord] = deque()  # cases of the current problem without a row
        self.worker: WorkerProcess | None = None
        self.cannot_start = ""  # the reason, once no worker can be started here
        self._spare: WorkerProcess | None = None  # replaces the worker at once, since a start takes seconds on a GPU
        self._calibrations: object = {}  # from the last worker, for the next one
        self._sources = deque(sources)  # the next source is used when the first cannot start workers
        self._log_path, self._limits, self._take, self._shared = log_path, limits, take, shared
        self._make_room = make_room
        self._ranks = ranks
        self._unannounced = False  # the worker has been given ``block[0]``, which no event says yet
        self._started_at, self._started_s = "", 0.0  # start of the case: in UTC, and on the monotonic clock
        self._oom_kills = processes.oom_kills()  # on this machine when the queue, or the last case, started
        self._attempts: Counter[str] = Counter()  # how often each case was given to a worker
        self._failed_starts = 0  # in a row
        self._replica = 0  # replica of the cases that the worker runs
        self._reported = False  # the worker is dying, and its case has a row or needs none

    @property
    def busy(self) -> bool:
        """Whether the worker owes an answer, or is dying."""
        return self.worker is not None and (self.worker.dying or self.worker.phase != IDLE)

    @property
    def measuring(self) -> bool:
        """Whether the worker measures, so that nothing else may run on the device."""
        return self.worker is not None and not self.worker.dying and self.worker.phase in TIMED

    def advance(self) -> Iterator[Event]:
        """Give an idle worker the next case or paired rounds, unless no worker can be started."""
        while not self.busy and not self.cannot_start:
            if not self.block:
                if self.worker and len(self.worker.timed) > 1:
                    yield from self._compare(self.worker)
                if self.busy:
                    return
                if self.worker:
                    self.worker.timed.clear()
                self.block.extend(self._take(self))
                if not self.block:
                    return
            case = self.block[0]
            if row := _row_without_worker(case):
                self.block.popleft()
                yield row
            elif self.worker is None:
                self._start(case.replica)
            elif self._replica != case.replica:
                self._stop(self.worker)
            else:
                yield from self._give(self.worker, case)

    def handle(self) -> Iterator[Event]:
        """Process the worker's messages, its end, and a passed time limit."""
        if (worker := self.worker) is None:
            return
        worker.cut_log()
        try:
            yield from self.drain()
            if self.worker is None or not self.busy:
                return
            late = worker.deadline <= time.monotonic()
            if worker.has_ended() or (late and worker.dying):
                yield from self._ended(worker, worker.end(0.0))
            elif late:
                yield from self._late(worker)
        except Gone as gone:
            yield from self._ended(worker, str(gone))

    def drain(self) -> Iterator[Event]:
        """Process the messages that have arrived. Raises Gone."""
        yield from self._announce()
        while self.worker and self.busy and not self.worker.dying and (message := self.worker.receive()) is not None:
            yield from self._process(self.worker, message)

    def pause_spare(self) -> None:
        """Pause a spare worker that is still starting while the worker measures. A ready spare worker sleeps."""
        if self._spare:
            self._spare.pause(self.measuring and not self._spare.has_message)

    def _give(self, worker: WorkerProcess, case: CaseRecord) -> Iterator[Event]:
        self._started_at, self._started_s = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
        self._attempts[case.key] += 1
        self._oom_kills = processes.oom_kills()
        self._unannounced = True
        try:
            worker.ask({"case": case.to_record()}, "inputs", self._limit_s("inputs"), case)
        except Gone as gone:
            self._unannounced = False
            if worker.cases:  # it ended between two cases, which is not a fault of this case
                self._attempts[case.key] -= 1
                self._stop(worker)
            else:  # without a row, this would repeat forever if the next worker does the same
                yield from self._lost(worker, "crashed", f"{gone} before its first case")
            return
        self._keep_spare()
        yield from self._announce()

    def _announce(self) -> Iterator[Event]:
        """Announce once that the worker has a case, even after an interrupt, which the case may have caused."""
        if self._unannounced:
            self._unannounced = False
            yield Started(self.block[0])

    def _compare(self, worker: WorkerProcess) -> Iterator[Event]:
        try:
            worker.ask({}, "compare", self._limit_s("compare"))
        except Gone as gone:
            self._stop(worker)
            yield PairedRounds(reason=f"no paired rounds: {gone}")

    def _process(self, worker: WorkerProcess, message: dict[str, Any]) -> Iterator[Event]:
        if "phase" in message:
            worker.enter(message["phase"], self._limit_s(message["phase"]))
            return
        worker.enter(IDLE, 0.0)
        match message:
            case {"environment": facts}:
                self._failed_starts = 0
                yield Ready(facts, self.gpus[0] if self.gpus else None)
            case {"rounds": rounds}:
                worker.timed.clear()
                yield rounds
                if message.get("spoiled"):
                    self._stop(worker)
            case {"full": reason}:
                self._attempts[self.block[0].key] -= 1
                yield Notice(f"{reason}: a new worker takes over")
                self._stop(worker)
            case {"row": row, "spoiled": spoiled, "calibrations": calibrations}:
                self._calibrations = {} if self._ranks else calibrations  # those of a rank are of its own GPU
                again = worker.cases > 0 and row.status == "oom" and (spoiled or not self.gpus)
                again = again or (row.status == "oom" and bool(self.gpus) and self._make_room(self.gpus))
                again = again or (row.status in DOUBTFUL and worker.ran_code_beside(row.case))
                worker.cases += 1
                worker.user_files |= row.case.user_files
                yield from self._done(row, again=again)
                if spoiled or again:
                    self._stop(worker)

    def _limit_s(self, phase: Phase) -> float:
        return float(getattr(self._limits, _limit_field(phase)))

    def _start(self, replica: int) -> None:
        if replica != self._replica:
            self._calibrations = {}  # each replica calibrates, since replicas show how much calibrations differ
        try:
            worker, self._spare = self._spare or self._fork(None if self._calibrations else self.block[0]), None
            worker.pause(False)
            if self._calibrations:
                worker.send({"recall": self._calibrations})
        except Gone as gone:
            self._start_failed(str(gone))
        else:
            self.worker, self._replica = worker, replica
            worker.enter("start", self._limit_s("start"))

    def _start_failed(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MOST_STARTS and len(self._sources) > 1:
            self._sources.popleft()
            self._failed_starts = 0
        elif self._failed_starts >= MOST_STARTS:
            self.cannot_start = reason

    def _fork(self, like: CaseRecord | None = None) -> WorkerProcess:
        if self._ranks:
            return RankGroup(self._sources[0], self._log_path, self.gpus, self._ranks, like)
        return WorkerProcess(self._sources[0], self._log_path, self.gpus, measures=True, like=like)

    def _keep_spare(self) -> None:
        """Start a spare worker with the second case, if the system has pidfds, which tell whether it is alive."""
        small = any(0 < gpu.memory_bytes < SMALL_BYTES for gpu in self.gpus)
        if self._spare or small or self._ranks or len(self._attempts) < 2 or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(Gone):  # the next start reports the reason
            self._spare = self._fork()

    def _stop(self, worker: WorkerProcess) -> None:
        """Kill the worker. It stays until it has ended, since its memory is in use until then."""
        self._reported = True
        try:
            worker.kill()
        except Gone:
            self._forget(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        """Drop the worker, which has ended or is stuck."""
        if worker.stuck:
            self.cannot_start = STUCK
        self.worker, self._reported = None, False

    def _late(self, worker: WorkerProcess) -> Iterator[Event]:
        phase = worker.phase
        where = worker.print_stacks()
        with contextlib.suppress(Gone):
            worker.kill()
        advice = f"raise launcher.{_limit_field(phase)} if it needs longer"
        reason = f"no end of phase {phase} within {self._limit_s(phase):g} s{where}; {advice}"
        yield from self._lost(worker, "timeout", reason)

    def _ended(self, worker: WorkerProcess, outcome: str) -> Iterator[Event]:
        if self._reported:
            self._forget(worker)
        elif outcome.endswith("SIGKILL") and processes.oom_kills() > self._oom_kills:
            reason = f"the machine, or this run's share of it, was out of memory: {outcome} by the kernel"
            yield from self._lost(worker, "oom", reason)
        else:
            thrown = "".join(f": {printable(text)}" for text in THROWN.findall(worker.printed())[:1])
            yield from self._lost(worker, "crashed", f"{outcome} in phase {worker.phase}{thrown}")

    def _lost(self, worker: WorkerProcess, status: Status, reason: str) -> Iterator[Event]:
        """Report the case or phase of a worker that has ended or was killed as ``status``."""
        phase, printed = worker.phase, worker.printed()
        if worker.ended:
            self._forget(worker)
        else:
            self._reported = True
        if phase == "start":
            self._start_failed(reason)
        elif phase == "compare":
            yield PairedRounds(reason=f"no paired rounds: {reason}")
        else:
            spent = {"wall_s": time.monotonic() - self._started_s}  # from which the next plan estimates its time
            row = Row(case=self.block[0], status=status, reason=reason, phase=phase, detail=printed, metrics=spent)
            again = status in DOUBTFUL and worker.ran_code_beside(row.case)
            yield from self._done(row, again=again or (status == "crashed" and worker.cases > 0))

    def _done(self, row: Row, *, again: bool) -> Iterator[Event]:
        """Yield the row of the case, unless it runs ``again``, which it does at most once."""
        attempts = self._attempts[row.case.key]
        if again and attempts == 1:
            return
        self.block.popleft()
        if self.worker and row.time_us is not None:
            self.worker.timed.add(row.case.key)
        metrics: dict[str, Scalar] = {**row.metrics, "started_at": self._started_at, "attempt": attempts}
        if self.gpus:
            metrics |= {"gpu_index": self.gpus[0].index, "gpu_uuid": ",".join(gpu.uuid for gpu in self.gpus)}
        if self._shared:
            metrics["gpu_shared"] = self._shared
        yield replace(row, metrics=metrics, reason=clip(row.reason), detail=clip(row.detail))


def _limit_field(phase: Phase) -> str:
    """Return the field of a launcher that limits ``phase``."""
    other = {"inputs": "build", "reference": "check", "compare": "measure"}
    return f"{other.get(phase, phase)}_limit_s"


def _row_without_worker(case: CaseRecord) -> Row | None:
    """Return the row of a case that cannot run here, else None."""
    status: Status = "unsupported"
    try:
        reason = implementations.build(case.impl).missing(case.workload.name)
    except (BadInput, ValueError) as error:  # the user's file has gone since the run began
        status, reason = "build_failed", str(error)
    return Row(case=case, status=status, reason=reason, phase="plan") if reason else None
