"""Precompiling: while a case is built and checked, other processes compile coming cases into the caches on disk.

They share the GPU with the worker, so they are paused while it measures.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import implementations
from ..device.gpus import CONTEXT_BYTES, Gpu
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Scalar
from ..records.row import Row
from . import Event, Started
from .spawn import Gone, Source
from .worker_process import IDLE, WorkerProcess

MOST = 8  # processes
SHARE = 0.1  # largest part of the GPUs' memory that their contexts may take
SPARE_CORES = 2  # for the worker and the parent
WORTH = 4  # with fewer cases to compile, starting a process takes longer than it saves


def process_count(requested: int | None, cores: int, cases: int, gpus: Sequence[Gpu]) -> int:
    """Return the number of processes: ``requested``, or by cores and memory if that is None; 0 for few ``cases``."""
    if requested is None:
        requested = max(0, min(MOST, (cores - SPARE_CORES) // 2))
        if memory_bytes := sum(gpu.memory_bytes for gpu in gpus):  # 0 on the CPU, or if unknown
            requested = min(requested, int(SHARE * memory_bytes / CONTEXT_BYTES))
    return min(requested, cases) if cases >= WORTH else 0


def compiled(cases: Iterable[CaseRecord]) -> list[CaseRecord]:
    """Return the cases whose implementation compiles code that a cache on disk keeps."""
    cases_that_compile = []
    for case in cases:
        with contextlib.suppress(BadInput, ValueError):  # the user's file is gone; the row of the case reports it
            if implementations.build(case.impl).kept_on_disk(case.workload.name):
                cases_that_compile.append(case)
    return cases_that_compile


class Precompiler:
    """Compiles ``cases`` in ``count`` processes on ``devices``, the last first, since workers begin with the first.

    The processes start at the first ``advance``, and end with ``source`` at the latest.
    """

    def __init__(
        self, source: Source, log_path: Path, devices: Sequence[Sequence[Gpu]], count: int, cases: Iterable[CaseRecord]
    ) -> None:
        self._source, self._log_path = source, log_path
        self._waiting = {case.key: case for case in cases}
        self._to_start = [devices[place % len(devices)] for place in range(count)]
        self._resting: list[Sequence[Gpu]] = []  # devices whose processes begin again after the next row
        self._compiling: dict[WorkerProcess, CaseRecord | None] = {}  # that each process compiles
        self._columns: dict[str, Mapping[str, Scalar]] = {}  # key of a compiled case → its columns
        self._given: set[str] = set()  # cases that workers have already

    @property
    def watched(self) -> list[int]:
        """Descriptors that become readable when a process sends a message or ends."""
        return [descriptor for process in self._compiling for descriptor in process.watched]

    def observe(self, event: Event) -> Event:
        """Return ``event``, with the columns of the compilation in a Row. A case that has started is not compiled."""
        if isinstance(event, Started):
            self._waiting.pop(event.case.key, None)
            self._given.add(event.case.key)
        elif isinstance(event, Row):
            self._to_start += self._resting
            self._resting.clear()
            return replace(event, metrics={**event.metrics, **self._columns.get(event.case.key, {})})
        return event

    def advance(self) -> None:
        """Read the processes' messages and distribute the next cases. A process without a case is ended."""
        while self._to_start and self._waiting:
            with contextlib.suppress(Gone):
                process = WorkerProcess(self._source, self._log_path, self._to_start.pop(), measures=False)
                self._compiling[process] = None
        for process in [*self._compiling]:
            try:
                self._advance(process)
            except Gone:  # it is not replaced; a case that kills it shows the reason in its worker
                del self._compiling[process]
                with contextlib.suppress(Gone):
                    process.kill()

    def pause_for(self, measuring: Collection[Sequence[Gpu]]) -> None:
        """Pause the processes on devices that are ``measuring``, and let the others continue."""
        for process in self._compiling:
            process.pause(process.gpus in measuring)

    def make_room(self, gpus: Sequence[Gpu]) -> bool:
        """End the processes on ``gpus``, which hold inputs there, until the next row. Return whether there were any."""
        ended = [process for process in self._compiling if process.gpus == gpus]
        for process in ended:
            if (case := self._compiling.pop(process)) and case.key not in self._given:
                self._waiting[case.key] = case
            with contextlib.suppress(Gone):
                process.kill()
        self._resting += [gpus] * len(ended)
        return bool(ended)

    def _advance(self, process: WorkerProcess) -> None:
        """Give ``process`` the next case. Raises Gone if it has ended, or if no case is left."""
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
            _, case = self._waiting.popitem()  # the last case, since a worker takes the first at once
            self._compiling[process] = case
            process.ask({"prepare": case.to_record()}, "build", 0.0)
