"""A set of GPUs, or the CPU, with its worker: the cases of a problem one at a time, and a row for each."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from runner import implementations
from runner.device import processes
from runner.device.gpus import Gpu
from runner.execute import Event, Notice, Ready, Started
from runner.execute.precompile import OFF, TIMED, Precompiler
from runner.execute.worker_process import Gone, Spawner, WorkerProcess, Zygote
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Comparison, Phase, Row, kept
from runner.experiment.schema import BadInput

MOST_STARTS = 2  # in a row that fail: then the device is not to be had
ANSWERS = {"environment", "rounds", "full", "row"}  # of a worker, beside the phase that it enters
SMALL_BYTES = 16 * 2**30  # a GPU on which the context of a spare worker would be missed by the cases
STUCK = "a worker that was killed has not ended, and holds it: see dmesg; a reboot may be needed"


class Limits(Protocol):
    """``runner.execute.local.Local`` is one."""

    def limit(self, phase: Phase) -> tuple[float, str]:
        """Longest that ``phase`` may take in seconds, and the field that says so."""


class OutOfService(Exception):
    """No worker can be started here; the message says why. What was to be done is left in ``block``."""


class DeviceQueue:
    """``take`` gives the next problem's cases, in order, or nothing when there are none left for this queue."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        sources: Sequence[Zygote | Spawner],
        log_path: Path,
        limits: Limits,
        take: Callable[[DeviceQueue], Sequence[CaseRecord]],
        shared: str = "",
    ) -> None:
        self.gpus = gpus  # one, or as many as a case of the grid asks for; none: the CPU
        self.precompile: Precompiler | None = None  # who compiles the coming cases
        self._shared = shared  # who else uses the GPU, in a sentence
        self.block: deque[CaseRecord] = deque()
        self.worker: WorkerProcess | None = None
        self._spare: WorkerProcess | None = None  # to take its place: on a GPU it takes seconds to be ready
        self._calibrations: object = {}  # of the workers so far, for the next one
        self._sources = deque(sources)  # of workers: the next one where the first gives none that starts
        self._log_path, self._limits, self._take = log_path, limits, take
        self._doing: CaseRecord | None = None
        self._started_at, self._started_s = "", 0.0  # of the case: by the clock, and by the monotonic one
        self._timed = 0  # cases of this block that this worker can compare
        self._oom_kills = 0  # of this machine, when the case was given to the worker
        self._tried: dict[str, int] = {}  # times that a case has been given to a worker
        self._failed_starts = 0
        self._replica = 0  # whose cases were run last
        self._why_not = ""  # no worker can be started
        self._settled = False  # the worker is dying, and of what it did all is said

    @property
    def busy(self) -> bool:
        """A worker owes an answer, or its end."""
        return self.worker is not None and (self.worker.dying or self.worker.phase != "plan")

    @property
    def measuring(self) -> bool:
        """Nothing else may run here now."""
        return self.worker is not None and not self.worker.dying and self.worker.phase in TIMED

    def advance(self) -> Iterator[Event]:
        """Give the worker something to do, if it is idle and there is something. Raises OutOfService."""
        while not self.busy:
            if self._why_not:
                raise OutOfService(self._why_not)
            if not self.block:
                if self.worker and self._timed > 1:
                    yield from self._compare()
                self._timed = 0
                if self.busy:
                    return
                self.block.extend(self._take(self))
                if not self.block:
                    return
            case = self.block[0]
            if row := _without_worker(case):
                self.block.popleft()
                yield row
            elif self.worker is None:
                self._start(case.replica)
            elif self.worker.replica != case.replica:
                self.stop()
            else:
                yield from self._give(case)

    def _give(self, case: CaseRecord) -> Iterator[Event]:
        assert self.worker is not None
        self._doing, self._started_at = case, datetime.now(UTC).isoformat(timespec="milliseconds")
        self._started_s = time.monotonic()
        self._tried[case.key] = self._tried.get(case.key, 0) + 1
        self._oom_kills = processes.oom_kills()
        try:
            self._ask({"case": case.to_record()}, "inputs")
        except Gone as gone:
            if self.worker.cases:  # it has ended idle: nobody's fault, and another one takes the case
                self._tried[case.key] -= 1
                self.stop()
            else:  # as the next one may, and the one after that
                yield from self._lost("crashed", f"{gone} before its first case", "inputs", "")
            return
        self._keep_spare()
        if self.precompile:
            self.precompile.skip(case)
        yield Started(case)

    def _compare(self) -> Iterator[Event]:
        try:
            self._ask({}, "compare")
        except Gone as gone:
            self.stop()
            yield Comparison(reason=f"not compared side by side: {gone}")

    def pause_for(self) -> None:
        """A spare worker that is not ready yet stands still while the other one measures."""
        if self._spare and not self._spare.answered:
            self._spare.pause(self.measuring)

    def handle(self) -> Iterator[Event]:
        """What the worker has said, or that it has ended, or is late."""
        assert self.worker is not None
        try:
            yield from self.drain()
            worker = self.worker
            if worker is None or not self.busy:
                return
            late = worker.deadline <= time.monotonic()
            if worker.has_ended() or (late and worker.dying):
                yield from self._ended(worker.end(0.0))
            elif late:
                yield from self._late()
        except Gone as gone:
            yield from self._ended(str(gone))

    def drain(self) -> Iterator[Event]:
        """What the worker has said so far, whole messages alone. Raises Gone."""
        while self.worker and self.busy and not self.worker.dying and (message := self.worker.receive()) is not None:
            yield from self._answered(message)

    def stop(self) -> None:
        """End the worker, whatever it does. It keeps its place until it has ended, since its memory is not free."""
        if self.worker is None:
            return
        try:
            self.worker.kill()
            self._settled = True
        except Gone:
            self._forget()

    def _forget(self) -> None:
        """The worker has ended, or holds the GPU for good."""
        assert self.worker is not None
        if self.worker.stuck:
            self._why_not = STUCK
        self.worker, self._timed, self._settled = None, 0, False

    def _start(self, replica: int) -> None:
        if replica != self._replica:
            self._calibrations = {}  # how far apart two replicas are is to be seen, also in these
        try:
            self.worker = self._take_spare() or self._fork(None if self._calibrations else self.block[0])
            if self._calibrations:
                self.worker.send({"recall": self._calibrations})
        except Gone as gone:
            self.worker = None
            self._start_failed(str(gone))
            return
        self.worker.replica = self._replica = replica
        self.worker.enter("start", self._limits.limit("start")[0])

    def _fork(self, like: CaseRecord | None = None) -> WorkerProcess:
        """Raises Gone."""
        return WorkerProcess(self._sources[0], self._log_path, self.gpus, measures=True, like=like)

    def _keep_spare(self) -> None:
        """Have one from the second case on, where it can be told whether it lives."""
        small = any(0 < gpu.memory_bytes < SMALL_BYTES for gpu in self.gpus)
        if self._spare or small or len(self._tried) < 2 or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(Gone):  # whoever needs a worker will see why there is none
            self._spare = self._fork()

    def _take_spare(self) -> WorkerProcess | None:
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        spare.pause(False)
        if spare.alive:
            return spare
        spare.end()
        return None

    def _start_failed(self, why: str) -> None:
        self._failed_starts += 1
        if self._failed_starts < MOST_STARTS:
            return
        if len(self._sources) > 1:
            self._sources.popleft()
            self._failed_starts = 0
        else:
            self._why_not = why

    def _ask(self, message: object, phase: Phase) -> None:
        """Raises Gone."""
        assert self.worker is not None
        self.worker.send(message)
        self.worker.enter(phase, self._limits.limit(phase)[0])

    def _answered(self, message: dict[str, object]) -> Iterator[Event]:
        assert self.worker is not None
        if "phase" in message:
            phase: Phase = message["phase"]  # type: ignore[assignment]
            self.worker.enter(phase, self._limits.limit(phase)[0])
            return
        if not message.keys() & ANSWERS:
            raise self.worker.refused()
        self.worker.enter("plan", 0.0)  # idle
        if "environment" in message:
            self._failed_starts = 0
            yield Ready(message["environment"], self.gpus[0] if self.gpus else None)  # type: ignore[arg-type]
        elif "rounds" in message:
            yield Comparison.from_record(message["rounds"])  # type: ignore[arg-type]
        elif "full" in message:
            assert self._doing is not None
            self._tried[self._doing.key] -= 1
            yield Notice(f"{message['full']}: a new worker takes over")
            self.stop()
        else:
            row = Row.from_record(message["row"])  # type: ignore[arg-type]
            self._calibrations = message["calibrations"]
            fresh = self.worker.cases == 0
            self.worker.cases += 1
            again = row.status == "oom" and not fresh and bool(message["spoiled"] or not self.gpus)
            if message["spoiled"] or again:
                yield from self._done(row, again=again)
                self.stop()
            else:
                yield from self._done(row)

    def _late(self) -> Iterator[Event]:
        assert self.worker is not None
        phase = self.worker.phase
        limit, field = self._limits.limit(phase)
        self.worker.where_is_it()
        why = f"no end of phase {phase} within {limit:g} s; raise launcher.{field} if it needs longer"
        printed = self.worker.printed()
        with contextlib.suppress(Gone):
            self.worker.kill()
        yield from self._lost("timeout", why, phase, printed)

    def _ended(self, how: str) -> Iterator[Event]:
        assert self.worker is not None
        if self._settled:
            self._forget()
            return
        phase, printed = self.worker.phase, self.worker.printed()
        if how.endswith("SIGKILL") and processes.oom_kills() > self._oom_kills:
            why = f"no memory was left, of the machine's or of what this run may have: {how} by the kernel"
            yield from self._lost("oom", why, phase, printed)
        else:
            yield from self._lost("crashed", f"{how} in phase {phase}", phase, printed)

    def _lost(self, status: str, why: str, phase: Phase, printed: str) -> Iterator[Event]:
        """The worker is gone, or was killed, and with it goes what it was doing."""
        assert self.worker is not None
        others = self.worker.cases > 0  # an earlier case may have brought it about
        if self.worker.ended:
            self._forget()
        else:
            self._settled = True
        if phase == "start":
            self._start_failed(why)
        elif phase == "compare":
            yield Comparison(reason=f"not compared side by side: {why}")
        elif self._doing is not None:
            spent = {"wall_s": time.monotonic() - self._started_s}  # which the next plan is to know of
            row = Row(case=self._doing, status=status, reason=why, phase=phase, detail=printed)  # type: ignore[arg-type]
            yield from self._done(replace(row, metrics=spent), again=status == "crashed" and others)

    def _done(self, row: Row, *, again: bool = False) -> Iterator[Event]:
        """The case's row, unless it is to be tried ``again`` and has been only once."""
        attempts = self._tried[row.case.key]
        self._doing = None
        if again and attempts == 1:
            return
        self.block.popleft()
        self._timed += row.time_us is not None
        where: dict[str, Scalar] = {}
        if self.gpus:
            where = {"gpu_index": self.gpus[0].index, "gpu_uuid": ",".join(gpu.uuid for gpu in self.gpus)}
        if self.precompile:
            where |= self.precompile.told(row.case)
            if row.time_us is not None and self.precompile.judge(row):
                yield Notice(OFF)
            where |= {"precompile_off": True} if self.precompile.off else {}
        if self._shared:
            where["gpu_shared"] = self._shared
        metrics = {**row.metrics, **where, "started_at": self._started_at, "attempt": attempts}
        yield replace(row, metrics=metrics, reason=kept(row.reason), detail=kept(row.detail))


def _without_worker(case: CaseRecord) -> Row | None:
    """The row of ``case``, if no worker is needed to know it."""
    try:
        why = implementations.build(case.impl).missing(case.workload.name)
    except (BadInput, ValueError) as gone:  # as a file of the user's is that was there when the run began
        return Row(case=case, status="build_failed", reason=str(gone), phase="plan")
    return Row(case=case, status="unsupported", reason=why, phase="plan") if why else None
