"""``launcher=local``: worker processes on this machine, one for each GPU, or for as many as a case asks for.

The parent never imports torch, and alone turns whatever happens to a worker into a row. A worker that dies,
hangs or is spoiled costs its case, and is replaced.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated

from runner import implementations
from runner.device import gpus
from runner.device import processes as children
from runner.device.gpus import Gpu
from runner.device.lock import acquire_all
from runner.execute import CannotStart, Event, Notice
from runner.execute.device_queue import DeviceQueue, OutOfService
from runner.execute.precompile import WORTH, Precompiler, compiled, processes
from runner.execute.worker_process import Forker, Gone, Spawner, Zygote
from runner.experiment.case import CaseRecord, debug_environment
from runner.experiment.results import Phase, Row

Seconds = Annotated[float, "above 0"]
SOURCES = (Zygote, Spawner) if sys.platform == "linux" else (Spawner,)  # of workers: the best first
LONGEST_WAIT_S = 1.0  # between two looks at whether a worker is late


@dataclass(frozen=True)
class Local:
    """Limits are per phase: what a phase may take depends on what it does."""

    gpus: str | int
    precompile: Annotated[int, "at least 0"] | None
    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds

    def limit(self, phase: Phase) -> tuple[float, str]:
        """The longest that ``phase`` may take, and the field that says so."""
        field = {"inputs": "build_limit_s", "compare": "measure_limit_s"}.get(phase, f"{phase}_limit_s")
        limit: float = getattr(self, field)
        return limit, field

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Forker | None = None) -> Iterator[Event]:
        """One row per case. Workers are started when the first case needs one. Raises CannotStart.

        An aid for finding faults may want its environment set before anything is imported, so each has its own workers.
        Those on the CPU come one at a time too, and not beside others on GPUs.
        """
        kinds: dict[tuple[str | None, bool, int], list[CaseRecord]] = {}
        for case in cases:
            kinds.setdefault((case.debug, case.device == "cpu", case.devices), []).append(case)
        for (aid, *_), some in kinds.items():
            environment = debug_environment(aid)
            yield from self._run(some, log_path, environment, None if environment else early)
            early = early if environment else None

    def _run(
        self, cases: Sequence[CaseRecord], log_path: str, environment: Mapping[str, str], early: Forker | None
    ) -> Iterator[Event]:
        """All in workers with ``environment``."""
        blocks = _blocks(cases)
        devices = self._devices(cases)[: max(1, len({case.problem for case in cases}))]
        if not devices:
            why = f"it needs {cases[0].devices} GPUs in one worker, and launcher.gpus={self.gpus} gives fewer here"
            yield from (Row(case=case, status="unsupported", reason=why, phase="plan") for case in cases)
            return
        used = [gpu for some in devices for gpu in some]
        path, plan = Path(log_path), _Plan(blocks)
        logs = [path.with_name(f"worker-{some[0].index}.log") if len(devices) > 1 else path for some in devices]
        with ExitStack() as stack:
            locks = acquire_all(used, _say) if used else []
            for lock in locks:
                stack.callback(lock.release)
            shared = _shared(used)
            for sentence in shared.values():
                yield Notice(sentence)
            held = [lock.fileno() for lock in locks]
            preload = _preload(cases, devices)
            sources = [kind(path, self.start_limit_s, preload, held, environment, early) for kind in SOURCES]
            for source in sources:
                stack.callback(source.close)
            queues = [
                DeviceQueue(
                    some, sources, log, self, plan.take, "; ".join(shared[one] for one in some if one in shared)
                )
                for some, log in zip(devices, logs, strict=True)
            ]
            yield from self._serve(
                queues, plan, path, self._precompiler(sources[0], path, devices, cases, queues, stack)
            )

    def _precompiler(
        self,
        zygote: Zygote | Spawner,
        path: Path,
        devices: Sequence[Sequence[Gpu]],
        cases: Sequence[CaseRecord],
        queues: Sequence[DeviceQueue],
        stack: ExitStack,
    ) -> Precompiler | None:
        """Who compiles the coming cases, if that is worth a process."""
        if len(cases) < WORTH:
            return None
        waiting = compiled(cases)
        count = processes(self.precompile, children.cores(), len(waiting), [gpu for some in devices for gpu in some])
        if not count:
            return None
        precompiler = Precompiler(zygote, path.with_name("precompile.log"), devices, count, waiting, self.start_limit_s)
        stack.callback(precompiler.close)
        for queue in queues:
            queue.precompile = precompiler
        return precompiler

    def _serve(
        self, queues: list[DeviceQueue], plan: _Plan, path: Path, precompiler: Precompiler | None
    ) -> Iterator[Event]:
        """Until every case has its row. Interrupted, it hands on what workers have sent already, and begins no more."""
        try:
            yield from self._until_done(queues, plan, path, precompiler)
        except KeyboardInterrupt:
            for queue in queues:
                with suppress(Gone):
                    yield from queue.drain()
            raise

    def _until_done(
        self, queues: list[DeviceQueue], plan: _Plan, path: Path, precompiler: Precompiler | None
    ) -> Iterator[Event]:
        while queues:
            for queue in list(queues):
                try:
                    yield from queue.advance()
                except OutOfService as reason:
                    plan.give_back(queue)
                    queues.remove(queue)
                    if not queues:
                        raise CannotStart(f"no worker could be started: {reason}; see {path}") from None
                    yield Notice(f"{_name(queue.gpus)} is out of service, others do its work: {reason}")
            waiting = [queue for queue in queues if queue.busy]
            if not waiting:
                if plan.left:  # given back after the others had asked for more
                    continue
                return
            workers = [queue.worker for queue in waiting if queue.worker]
            soonest = min(worker.deadline for worker in workers) - time.monotonic()
            watched = [one for worker in workers for one in worker.watched]
            if precompiler:
                precompiler.advance()
                watched += precompiler.watched
            wait(watched, max(0.0, min(soonest, LONGEST_WAIT_S)))
            for queue in waiting:
                yield from queue.handle()
                queue.pause_for()
                if precompiler:
                    precompiler.pause_for(one.gpus for one in queues if one.measuring)

    def _devices(self, cases: Sequence[CaseRecord]) -> list[tuple[Gpu, ...]]:
        """Sets of as many GPUs as each case asks for, or the CPU as (). Raises BadInput if one is not there."""
        if all(case.device == "cpu" for case in cases):
            return [()]
        found = gpus.visible()
        if not found and str(self.gpus) in gpus.ANYWHERE:
            return [()]
        chosen, count = gpus.choose(str(self.gpus), found), cases[0].devices
        return [tuple(chosen[place : place + count]) for place in range(0, len(chosen) - count + 1, count)]


class _Plan:
    """Blocks of cases that are to run in one process; those of one problem all on one GPU, so that they compare."""

    def __init__(self, blocks: Sequence[Sequence[CaseRecord]]) -> None:
        self._left = deque(blocks)
        self._place: dict[str, DeviceQueue] = {}  # of each problem

    @property
    def left(self) -> bool:
        """There are blocks that nobody has taken."""
        return bool(self._left)

    def take(self, queue: DeviceQueue) -> Sequence[CaseRecord]:
        """The next block that belongs to ``queue``, or to nobody yet; empty if there is none."""
        for block in self._left:
            if self._place.get(block[0].problem, queue) is queue:
                self._left.remove(block)
                self._place[block[0].problem] = queue
                return block
        return ()

    def give_back(self, queue: DeviceQueue) -> None:
        """``queue`` is out of service: what is left of its block comes next, on another GPU."""
        self._place = {problem: other for problem, other in self._place.items() if other is not queue}
        if queue.block:
            self._left.appendleft(list(queue.block))


def _shared(used: Sequence[Gpu]) -> dict[Gpu, str]:
    """A sentence for each GPU that others use although its lock is ours."""
    now = {gpu.uuid: gpu for gpu in gpus.visible()} if used else {}
    found = {gpu: gpus.busy(now.get(gpu.uuid, gpu)) for gpu in used}
    return {gpu: sentence for gpu, sentence in found.items() if sentence}


def _blocks(cases: Sequence[CaseRecord]) -> list[list[CaseRecord]]:
    """Neighbours of one problem and one replica."""
    return [list(block) for _, block in groupby(cases, key=lambda case: (case.replica, case.problem))]


def _preload(cases: Sequence[CaseRecord], devices: Sequence[Sequence[Gpu]]) -> list[str]:
    """Modules that all workers will need, and that take a second to import."""
    compiles = any("compiled" in (case.impl.name, case.impl.fields.get("of")) for case in cases)
    if any(devices):
        profiles = any(measure.name == "profile" for case in cases for measure in case.measures)
        return ["torch._dynamo"] if compiles or profiles else []  # no Inductor: it starts CUDA, which survives no fork
    wanted = {implementations.kind(case.impl).__module__ for case in cases} | {"runner.timing.cpu"}
    wanted |= {f"runner.models.{case.workload.name}" for case in cases}
    if compiles:
        wanted.add("torch._inductor.compile_fx")
    return sorted(wanted)


def _say(text: str) -> None:
    """Now, and not when the waiting is over."""
    print(f"runner: {text}", file=sys.stderr, flush=True)


def _name(used: Sequence[Gpu]) -> str:
    return " and ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in used) or "the CPU"
