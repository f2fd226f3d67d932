"""A set of GPUs, or the CPU, with its worker, which runs one case at a time and is replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import runner.implementations as implementations
from runner.device import processes
from runner.device.gpus import Gpu
from runner.execute import Event, Limits, Notice, Ready, Started
from runner.execute.worker_process import IDLE, Gone, Spawner, WorkerProcess, Zygote
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Comparison, Phase, Row, clip
from runner.experiment.schema import BadInput

MOST_STARTS = 2  # failed starts in a row after which the device is out of service
SMALL_BYTES = 16 * 2**30  # on a GPU with less memory, cases need what the CUDA context of a spare worker takes
TIMED: tuple[Phase, ...] = ("measure", "compare")  # phases in which nothing else may run on the device
STUCK = "a killed worker has not ended and holds it: see dmesg; a reboot may be needed"


class DeviceQueue:
    """Yields a row for each case of ``take()``, which returns the cases of the next problem, or none at the end.

    ``gpus`` are the devices of each case; empty for the CPU. ``shared`` names other users of them, for the rows.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        sources: Sequence[Zygote | Spawner],
        log_path: Path,
        limits: Limits,
        take: Callable[[DeviceQueue], Sequence[CaseRecord]],
        shared: str = "",
    ) -> None:
        self.gpus = gpus
        self.block: deque[CaseRecord] = deque()  # the cases of the current problem that have no row yet
        self.worker: WorkerProcess | None = None
        self.cannot_start = ""  # why no worker can be started here any more
        self._spare: WorkerProcess | None = None  # replaces the worker at once: on a GPU a start takes seconds
        self._calibrations: object = {}  # from the last worker, for the next one
        self._sources = deque(sources)  # the next one is used when the first cannot start workers
        self._log_path, self._limits, self._take, self._shared = log_path, limits, take, shared
        self._case: CaseRecord | None = None  # what the worker runs
        self._given: CaseRecord | None = None  # the same until it has been announced
        self._started_at, self._started_s = "", 0.0  # of the case: in UTC, and on the monotonic clock
        self._oom_kills = 0  # of the machine when the case started
        self._attempts: Counter[str] = Counter()  # how often each case was given to a worker
        self._failed_starts = 0  # in a row
        self._replica = 0  # of the cases that the worker runs
        self._reported = False  # the worker is dying, and its case has a row or needs none

    @property
    def busy(self) -> bool:
        """Whether the worker owes an answer, or is dying."""
        return self.worker is not None and (self.worker.dying or self.worker.phase != IDLE)

    @property
    def measuring(self) -> bool:
        """Whether nothing else may run on the device now."""
        return self.worker is not None and not self.worker.dying and self.worker.phase in TIMED

    def advance(self) -> Iterator[Event]:
        """Give an idle worker the next case or comparison, unless no worker can be started."""
        while not self.busy and not self.cannot_start:
            if not self.block:
                if self.worker and len(self.worker.timed) > 1:
                    yield from self._compare()
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
                self._stop()
            else:
                yield from self._give(case)

    def handle(self) -> Iterator[Event]:
        """Process the worker's messages, its end, and a passed time limit."""
        try:
            yield from self.drain()
            if self.worker is None or not self.busy:
                return
            late = self.worker.deadline <= time.monotonic()
            if self.worker.has_ended() or (late and self.worker.dying):
                yield from self._ended(self.worker.end(0.0))
            elif late:
                yield from self._late()
        except Gone as gone:
            yield from self._ended(str(gone))

    def drain(self) -> Iterator[Event]:
        """Process the messages that have arrived. Raises Gone."""
        yield from self._announce()
        while self.worker and self.busy and not self.worker.dying and (message := self.worker.receive()) is not None:
            yield from self._process(message)

    def pause_spare(self) -> None:
        """Stop a spare worker that is still starting while the other one measures. One that is ready only sleeps."""
        if self._spare:
            self._spare.pause(self.measuring and not self._spare.has_message)

    def _give(self, case: CaseRecord) -> Iterator[Event]:
        assert self.worker is not None
        self._case, self._started_at = case, datetime.now(UTC).isoformat(timespec="milliseconds")
        self._started_s = time.monotonic()
        self._attempts[case.key] += 1
        self._oom_kills = processes.oom_kills()
        self._given = case
        try:
            self.worker.ask({"case": case.to_record()}, "inputs", self._limit_s("inputs"), case)
        except Gone as gone:
            self._given = None
            if self.worker.cases:  # it ended between two cases, which is no fault of this one
                self._attempts[case.key] -= 1
                self._stop()
            else:  # the next worker may do the same: without a row this would never end
                yield from self._lost("crashed", f"{gone} before its first case")
            return
        self._keep_spare()
        yield from self._announce()

    def _announce(self) -> Iterator[Event]:
        """Say once that the worker has a case, also if an interrupt has come since: the case may have caused it."""
        if case := self._given:
            self._given = None
            yield Started(case)

    def _compare(self) -> Iterator[Event]:
        assert self.worker is not None
        try:
            self.worker.ask({}, "compare", self._limit_s("compare"))
        except Gone as gone:
            self._stop()
            yield Comparison(reason=f"not compared side by side: {gone}")

    def _process(self, message: dict[str, Any]) -> Iterator[Event]:
        assert self.worker is not None
        if "phase" in message:
            self.worker.enter(message["phase"], self._limit_s(message["phase"]))
            return
        self.worker.enter(IDLE, 0.0)
        match message:
            case {"environment": facts}:
                self._failed_starts = 0
                yield Ready(facts, self.gpus[0] if self.gpus else None)
            case {"rounds": comparison}:
                self.worker.timed.clear()
                yield comparison
            case {"full": why}:
                assert self._case is not None
                self._attempts[self._case.key] -= 1
                yield Notice(f"{why}: a new worker takes over")
                self._stop()
            case {"row": row, "spoiled": spoiled, "calibrations": calibrations}:
                self._calibrations = calibrations
                fresh = self.worker.cases == 0
                self.worker.cases += 1
                again = row.status == "oom" and not fresh and (spoiled or not self.gpus)
                yield from self._done(row, again=again)
                if spoiled or again:
                    self._stop()

    def _limit_s(self, phase: Phase) -> float:
        """Return the time limit of ``phase``."""
        limit: float = getattr(self._limits, _limit_field(phase))
        return limit

    def _start(self, replica: int) -> None:
        if replica != self._replica:
            self._calibrations = {}  # replicas show how much calibrations differ, so each makes its own
        try:
            worker, self._spare = self._spare or self._fork(None if self._calibrations else self.block[0]), None
            worker.pause(False)
            if self._calibrations:
                worker.send({"recall": self._calibrations})
        except Gone as gone:
            self._start_failed(str(gone))
            return
        self.worker, self._replica = worker, replica
        worker.enter("start", self._limit_s("start"))

    def _start_failed(self, why: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MOST_STARTS and len(self._sources) > 1:
            self._sources.popleft()
            self._failed_starts = 0
        elif self._failed_starts >= MOST_STARTS:
            self.cannot_start = why

    def _fork(self, like: CaseRecord | None = None) -> WorkerProcess:
        return WorkerProcess(self._sources[0], self._log_path, self.gpus, measures=True, like=like)

    def _keep_spare(self) -> None:
        """Start a spare worker with the second case, where the system tells whether it lives."""
        small = any(0 < gpu.memory_bytes < SMALL_BYTES for gpu in self.gpus)
        if self._spare or small or len(self._attempts) < 2 or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(Gone):  # the next start will tell why
            self._spare = self._fork()

    def _stop(self) -> None:
        """Kill the worker. It keeps its place until it has ended, since its memory is in use until then."""
        assert self.worker is not None
        self._reported = True
        try:
            self.worker.kill()
        except Gone:
            self._forget()

    def _forget(self) -> None:
        """Make room for the next worker: this one has ended, or is stuck."""
        assert self.worker is not None
        if self.worker.stuck:
            self.cannot_start = STUCK
        self.worker, self._reported = None, False

    def _late(self) -> Iterator[Event]:
        assert self.worker is not None
        phase = self.worker.phase
        self.worker.print_stacks()
        with contextlib.suppress(Gone):
            self.worker.kill()
        raised = f"raise launcher.{_limit_field(phase)} if it needs longer"
        why = f"no end of phase {phase} within {self._limit_s(phase):g} s; {raised}"
        yield from self._lost("timeout", why)

    def _ended(self, how: str) -> Iterator[Event]:
        assert self.worker is not None
        if self._reported:
            self._forget()
        elif how.endswith("SIGKILL") and processes.oom_kills() > self._oom_kills:
            why = f"the machine, or this run's share of it, was out of memory: {how} by the kernel"
            yield from self._lost("oom", why)
        else:
            yield from self._lost("crashed", f"{how} in phase {self.worker.phase}")

    def _lost(self, status: str, why: str) -> Iterator[Event]:
        """The worker has ended or was killed: report what it did as ``status``."""
        assert self.worker is not None
        phase, printed, others = self.worker.phase, self.worker.printed(), self.worker.cases > 0
        if self.worker.ended:
            self._forget()
        else:
            self._reported = True
        if phase == "start":
            self._start_failed(why)
        elif phase == "compare":
            yield Comparison(reason=f"not compared side by side: {why}")
        elif self._case is not None:
            spent = {"wall_s": time.monotonic() - self._started_s}  # the next plan estimates its time from this
            row = Row(case=self._case, status=status, reason=why, phase=phase, detail=printed)  # type: ignore[arg-type]
            again = status == "crashed" and others  # an earlier case may have caused it
            yield from self._done(replace(row, metrics=spent), again=again)

    def _done(self, row: Row, *, again: bool) -> Iterator[Event]:
        """Yield the row of the case, unless it runs ``again``, which it does once."""
        attempts = self._attempts[row.case.key]
        self._case = None
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
    return {"inputs": "build_limit_s", "compare": "measure_limit_s"}.get(phase, f"{phase}_limit_s")


def _row_without_worker(case: CaseRecord) -> Row | None:
    """Return the row of a case that cannot run here, or None."""
    try:
        why = implementations.build(case.impl).missing(case.workload.name)
    except (BadInput, ValueError) as gone:  # the user's file was there when the run began
        return Row(case=case, status="build_failed", reason=str(gone), phase="plan")
    return Row(case=case, status="unsupported", reason=why, phase="plan") if why else None
