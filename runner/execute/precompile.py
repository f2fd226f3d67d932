"""Precompiling: while one case is built and checked, other processes compile coming cases into the caches on disk.

They share the GPU with the worker, so they are stopped while it measures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import runner.implementations as implementations
from runner.device.gpus import CONTEXT_BYTES, Gpu
from runner.execute import Event, Started
from runner.execute.worker_process import IDLE, Gone, Spawner, WorkerProcess, Zygote
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Row
from runner.experiment.schema import BadInput

MOST = 8  # processes
SHARE = 0.1  # largest part of the GPUs' memory that their contexts may take
SPARE_CORES = 2  # for the worker and the parent
WORTH = 4  # with fewer cases to compile, starting a process takes longer than it saves


def process_count(asked: int | None, cores: int, cases: int, gpus: Sequence[Gpu]) -> int:
    """Return how many processes to start: ``asked``, or by cores and memory if that is None; 0 for few ``cases``."""
    if asked is None:
        asked = max(0, min(MOST, (cores - SPARE_CORES) // 2))
        if memory_bytes := sum(gpu.memory_bytes for gpu in gpus):  # 0 on the CPU, or if it is unknown
            asked = min(asked, int(SHARE * memory_bytes / CONTEXT_BYTES))
    return min(asked, cases) if cases >= WORTH else 0


def compiled(cases: Iterable[CaseRecord]) -> list[CaseRecord]:
    """Return the cases whose implementation compiles something that a cache on disk keeps."""
    found = []
    for case in cases:
        with contextlib.suppress(BadInput, ValueError):  # the user's file is gone; the row of the case will say so
            if implementations.build(case.impl).kept_on_disk(case.workload.name):
                found.append(case)
    return found


class Precompiler:
    """Compiles ``cases`` in ``count`` processes on ``devices``. The last case comes first: workers begin at the front.

    The processes start at the first ``advance``, and end with ``source`` at the latest.
    """

    def __init__(
        self,
        source: Zygote | Spawner,
        log_path: Path,
        devices: Sequence[Sequence[Gpu]],
        count: int,
        cases: Iterable[CaseRecord],
    ) -> None:
        self._source, self._log_path = source, log_path
        self._waiting = {case.key: case for case in cases}
        self._to_start = [devices[place % len(devices)] for place in range(count)]
        self._compiling: dict[WorkerProcess, CaseRecord | None] = {}  # what each process compiles
        self._columns: dict[str, Mapping[str, Scalar]] = {}  # of compiled cases, by their keys
        self._given: set[str] = set()  # cases that workers have: compiling them now is too late

    @property
    def watched(self) -> list[int]:
        """Descriptors to wait for: one becomes readable when a process sends a message or ends."""
        return [one for process in self._compiling for one in process.watched]

    def observe(self, event: Event) -> Event:
        """Return ``event``; a Row gets the columns of its compilation. A case that has started is not compiled."""
        if isinstance(event, Started):
            self._waiting.pop(event.case.key, None)
            self._given.add(event.case.key)
        elif isinstance(event, Row):
            return replace(event, metrics={**event.metrics, **self._columns.get(event.case.key, {})})
        return event

    def advance(self) -> None:
        """Read the processes' messages and give out the next cases. A process without a case frees its memory."""
        while self._to_start and self._waiting:
            with contextlib.suppress(Gone):
                process = WorkerProcess(self._source, self._log_path, self._to_start.pop(), measures=False)
                self._compiling[process] = None
        for process in [*self._compiling]:
            try:
                self._advance(process)
            except Gone:  # no other process replaces it: a case that kills it tells its own worker why
                del self._compiling[process]
                with contextlib.suppress(Gone):
                    process.kill()

    def pause_for(self, measuring: Collection[Sequence[Gpu]]) -> None:
        """Stop the processes on devices that are ``measuring``, and let the others continue."""
        for process in self._compiling:
            process.pause(process.gpus in measuring)

    def _advance(self, process: WorkerProcess) -> None:
        """Raises Gone if it has ended, or if no case is left for it."""
        case = self._compiling[process]
        while (message := process.receive()) is not None:
            if "prepared" in message and case and case.key not in self._given:
                self._columns[case.key] = message["prepared"]
            process.enter(IDLE, 0.0)
        if process.has_ended():
            raise Gone(process.end())
        if process.phase == IDLE and not process.paused:
            if not self._waiting:
                raise Gone("no case is left")
            _, case = self._waiting.popitem()  # the last one: a worker takes the first one at once
            self._compiling[process] = case
            process.ask({"prepare": case.to_record()}, "build", 0.0)
