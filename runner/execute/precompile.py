"""Compiling ahead: while one case is built and checked, other processes compile the coming ones into the disk caches.

They share the GPU with the worker, so they are stopped while it measures: a timing has the machine to itself. Should
timings be unsteady all the same, several in a row, there is no more of it, and the rows say so.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner import implementations
from runner.device.gpus import CONTEXT_BYTES, Gpu
from runner.execute.worker_process import Gone, Spawner, WorkerProcess, Zygote
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Row
from runner.experiment.schema import BadInput

MOST = 8  # processes
SHARE = 0.1  # of the memory of the GPUs, at most, for their contexts
SPARE_CORES = 2  # for the worker and the parent
WORTH = 4  # cases to compile below which no process is started for it
SUFFERING = ("contended", "contradicted")  # verdicts of a timing that something may have disturbed
UNSTEADY = "not_converged"  # so may this one on a GPU; on a CPU it is common
MOST_SUFFERING = 5  # in a row beside a process that compiles
OFF = "compiling ahead is off from here on: timings beside it were unsteady five times in a row"
TIMED = ("measure", "compare")  # phases in which nothing else may run


def processes(asked: int | None, cores: int, cases: int, gpus: Sequence[Gpu]) -> int:
    """How many to have: those ``asked`` for, else as cores and memory allow; none where there is little to compile."""
    if asked is None:
        asked = max(0, min(MOST, (cores - SPARE_CORES) // 2))
        if memory_bytes := sum(gpu.memory_bytes for gpu in gpus):  # 0: on the CPU, or it is not known
            asked = min(asked, int(SHARE * memory_bytes / CONTEXT_BYTES))
    return min(asked, cases) if cases >= WORTH else 0


def compiled(cases: Iterable[CaseRecord]) -> list[CaseRecord]:
    """Those of ``cases`` that compile something which a disk cache keeps."""
    return [case for case in cases if _kept_on_disk(case)]


def _kept_on_disk(case: CaseRecord) -> bool:
    try:
        return implementations.build(case.impl).kept_on_disk(case.workload.name)
    except (BadInput, ValueError):  # a file that is gone: its row will say so
        return False


class _Builder:
    """A process that compiles, on the GPU of a queue."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.gpus = gpus
        self.process: WorkerProcess | None = None
        self.case: CaseRecord | None = None


class Precompiler:
    """``count`` processes on ``devices`` compile one case each, the last of ``cases`` first: workers begin in front."""

    def __init__(
        self,
        zygote: Zygote | Spawner,
        log_path: Path,
        devices: Sequence[Sequence[Gpu]],
        count: int,
        cases: Iterable[CaseRecord],
        start_limit_s: float,
    ) -> None:
        self._zygote, self._log_path, self._start_limit_s = zygote, log_path, start_limit_s
        self._waiting = {case.key: case for case in cases}
        self._builders = deque(_Builder(devices[place % len(devices)]) for place in range(count))
        self._told: dict[str, Mapping[str, Scalar]] = {}
        self._given: set[str] = set()  # to workers: what is compiled now comes too late for these
        self._suffered = 0  # timings in a row
        self.off = False  # for the timings' sake
        self._dying: list[WorkerProcess] = []

    @property
    def watched(self) -> list[int]:
        """Descriptors of which one is readable when there is something to hear."""
        return [one for builder in self._builders if builder.process for one in builder.process.watched]

    def skip(self, case: CaseRecord) -> None:
        """A worker has ``case`` now."""
        self._waiting.pop(case.key, None)
        self._given.add(case.key)

    def told(self, case: CaseRecord) -> Mapping[str, Scalar]:
        """Columns of ``case``, if it was compiled here."""
        return self._told.get(case.key, {})

    def judge(self, row: Row) -> bool:
        """``row`` has been timed. True if that was too much: there is no compiling ahead any more."""
        if self.off or not any(builder.process for builder in self._builders):
            return False
        verdict = row.metrics.get("verdict")
        suffers = verdict in SUFFERING or (verdict == UNSTEADY and row.device != "cpu")
        self._suffered = self._suffered + 1 if suffers else 0
        self.off = self._suffered >= MOST_SUFFERING
        if self.off:
            self.close()
            self._builders.clear()
        return self.off

    def advance(self) -> None:
        """Hear what is done, and give out what is next; who finds nothing any more gives back the memory it holds."""
        self._reap()
        for builder in [*self._builders]:
            try:
                self._hear(builder)
                idle = builder.process and builder.process.phase == "plan" and not builder.process.paused
                if idle and not self._waiting:
                    self._end(builder)
                    self._builders.remove(builder)
                    continue
                if builder.process is None and self._waiting:
                    builder.process = WorkerProcess(self._zygote, self._log_path, builder.gpus, measures=False)
                    builder.process.enter("start", self._start_limit_s)
                elif builder.process and builder.process.phase == "plan" and self._waiting:
                    _, builder.case = self._waiting.popitem()  # the last: the next one a worker would have at once
                    builder.process.enter("build", 0.0)
                    builder.process.send({"prepare": builder.case.to_record()})
            except Gone:  # the case will tell its own worker why; nobody else compiles in this one's place
                self._end(builder)
                self._builders.remove(builder)

    def pause_for(self, measuring: Iterable[Sequence[Gpu]]) -> None:
        """Stop whoever is on GPUs that are ``measuring``, and let the others go on."""
        taken = [*measuring]
        for builder in self._builders:
            if builder.process:
                builder.process.pause(builder.gpus in taken)

    def close(self) -> None:
        """End all of them."""
        for builder in self._builders:
            self._end(builder)
        self._reap()

    def _reap(self) -> None:
        """Those that have ended meanwhile; the others when their source does."""
        ended = [process for process in self._dying if process.has_ended()]
        self._dying = [process for process in self._dying if process not in ended]
        for process in ended:
            process.end(0.0)

    def _hear(self, builder: _Builder) -> None:
        """Raises Gone."""
        while builder.process and (message := builder.process.receive()) is not None:
            if "prepared" in message and builder.case and builder.case.key not in self._given:
                self._told[builder.case.key] = message["prepared"]
            builder.process.enter("plan", 0.0)  # idle
        if builder.process and not builder.process.paused:
            late = builder.process.phase == "start" and builder.process.deadline < time.monotonic()
            if late or builder.process.has_ended():
                raise Gone(builder.process.end())

    def _end(self, builder: _Builder) -> None:
        """Nobody waits for that."""
        if process := builder.process:
            builder.process = None
            with contextlib.suppress(Gone):
                process.kill()
                self._dying.append(process)
