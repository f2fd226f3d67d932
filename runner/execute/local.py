"""``launcher=local``: worker processes on this machine, one for each GPU, or for as many as a case asks for.

The parent never imports torch. It alone turns whatever happens to a worker into a row.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated

import runner.implementations as implementations
from runner.device import gpus, processes
from runner.device.gpus import Gpu
from runner.device.lock import acquire_all
from runner.execute import CannotStart, Event, Limits, Notice
from runner.execute.device_queue import DeviceQueue
from runner.execute.precompile import WORTH, Precompiler, compiled, process_count
from runner.execute.worker_process import Gone, Spawner, Zygote
from runner.experiment.case import DEBUG_ENVIRONMENT, DETERMINISTIC_ENVIRONMENT, CaseRecord
from runner.experiment.results import Row

SOURCES = (Zygote, Spawner) if sys.platform == "linux" else (Spawner,)  # of workers, the best first
LONGEST_WAIT_S = 1.0  # a worker's time limit may pass this much earlier than it is noticed


@dataclass(frozen=True, kw_only=True)
class Local(Limits):
    """Worker processes on this machine."""

    gpus: str | int
    precompile: Annotated[int, "at least 0"] | None

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Zygote | None = None) -> Iterator[Event]:
        """Yield one row per case. Raises CannotStart.

        Cases that differ in ``debug`` or ``deterministic_algorithms`` run in different workers, since these may need
        their environment set before anything is imported. Cases on the CPU do not run beside cases on GPUs.
        """
        kinds: dict[tuple[str | None, bool, bool, int], list[CaseRecord]] = {}
        for case in cases:
            kind = case.debug, case.deterministic_algorithms, case.device == "cpu", case.devices
            kinds.setdefault(kind, []).append(case)
        for (debug, deterministic, *_), some in kinds.items():
            environment = {**DEBUG_ENVIRONMENT.get(debug, {}), **(DETERMINISTIC_ENVIRONMENT if deterministic else {})}
            yield from self._run(some, Path(log_path), environment, None if environment else early)
            early = early if environment else None

    def _run(
        self, cases: Sequence[CaseRecord], path: Path, environment: Mapping[str, str], early: Zygote | None
    ) -> Iterator[Event]:
        """Run ``cases``, all in workers with ``environment``."""
        devices = self._devices(cases)[: max(1, len({case.problem for case in cases}))]
        if not devices:
            why = f"it needs {cases[0].devices} GPUs in one worker, and launcher.gpus={self.gpus} gives fewer here"
            yield from (Row(case=case, status="unsupported", reason=why, phase="plan") for case in cases)
            return
        used = [gpu for some in devices for gpu in some]
        plan, preload = _Plan(cases), modules_to_preload(cases, on_gpu=bool(used))
        with ExitStack() as stack:
            locks = acquire_all(used, _print_now) if used else []
            for lock in locks:
                stack.callback(lock.release)
            shared = _other_users(used)
            yield from map(Notice, shared.values())
            sources = [early if early and kind is Zygote else kind(environment) for kind in SOURCES]
            for source in sources:
                stack.callback(source.close)
                source.begin(path, preload, [lock.fileno() for lock in locks], self.start_limit_s)
            queues = []
            for some in devices:
                log = path.with_name(f"worker-{some[0].index}.log") if len(devices) > 1 else path
                others = "; ".join(shared[gpu] for gpu in some if gpu in shared)
                queues.append(DeviceQueue(some, sources, log, self, plan.take, others))
            precompiler = None
            if len(cases) >= WORTH and self.precompile != 0:
                waiting = compiled(cases)
                count = process_count(self.precompile, processes.cores(), len(waiting), used)
                precompiler = Precompiler(sources[0], path.with_name("precompile.log"), devices, count, waiting)
            observe: Callable[[Event], Event] = precompiler.observe if precompiler else lambda event: event
            try:
                for event in self._serve(queues, plan, precompiler, path):
                    yield observe(event)
            except KeyboardInterrupt:  # rows that have arrived are kept
                for queue in queues:
                    with suppress(Gone):
                        yield from map(observe, queue.drain())
                raise

    def _serve(
        self, queues: Sequence[DeviceQueue], plan: _Plan, precompiler: Precompiler | None, path: Path
    ) -> Iterator[Event]:
        """Run the queues until each case has its row."""
        active = [*queues]
        while active:
            for queue in [*active]:
                yield from queue.advance()
                if reason := queue.cannot_start:
                    plan.give_back(queue)
                    active.remove(queue)
                    if not active:
                        raise CannotStart(f"no worker could be started: {reason}; see {path}")
                    yield Notice(f"{_name(queue.gpus)} is out of service, others do its work: {reason}")
            workers = [queue.worker for queue in active if queue.worker and queue.busy]
            if not workers:
                if plan.left:  # a queue gave it back after the others had asked for more
                    continue
                return
            soonest = min(worker.deadline for worker in workers) - time.monotonic()
            watched = [one for worker in workers for one in worker.watched]
            if precompiler:
                precompiler.advance()
                watched += precompiler.watched
            wait(watched, max(0.0, min(soonest, LONGEST_WAIT_S)))
            for queue in active:
                if queue.busy:
                    yield from queue.handle()
                    queue.pause_spare()
                    if precompiler:
                        precompiler.pause_for([one.gpus for one in active if one.measuring])

    def _devices(self, cases: Sequence[CaseRecord]) -> list[tuple[Gpu, ...]]:
        """Return sets of as many GPUs as each case asks for, or [()] for the CPU. Raises BadInput if one is missing."""
        if all(case.device == "cpu" for case in cases):
            return [()]
        found = gpus.visible()
        if not found and str(self.gpus) in gpus.ANYWHERE:
            return [()]
        chosen, count = gpus.choose(str(self.gpus), found), cases[0].devices
        return [tuple(chosen[place : place + count]) for place in range(0, len(chosen) - count + 1, count)]


class _Plan:
    """Blocks of cases that run in one worker. All blocks of a problem run on one device, so that they compare."""

    def __init__(self, cases: Sequence[CaseRecord]) -> None:
        blocks = groupby(cases, key=lambda case: (case.replica, case.problem))
        self.left = deque(list(block) for _, block in blocks)  # blocks that no queue has taken
        self._queues: dict[str, DeviceQueue] = {}  # by problem

    def take(self, queue: DeviceQueue) -> Sequence[CaseRecord]:
        """Return the next block of ``queue``'s problems or of a new problem; empty if there is none."""
        for block in self.left:
            if self._queues.setdefault(block[0].problem, queue) is queue:
                self.left.remove(block)
                return block
        return ()

    def give_back(self, queue: DeviceQueue) -> None:
        """Let other queues take the problems of ``queue``, which is out of service, first the rest of its block."""
        self._queues = {problem: other for problem, other in self._queues.items() if other is not queue}
        if queue.block:
            self.left.appendleft(list(queue.block))


def _other_users(used: Sequence[Gpu]) -> dict[Gpu, str]:
    """Return a sentence for each GPU that other processes use although its lock is ours."""
    now = {gpu.uuid: gpu for gpu in gpus.visible()} if used else {}
    found = {gpu: gpus.busy(now.get(gpu.uuid, gpu)) for gpu in used}
    return {gpu: sentence for gpu, sentence in found.items() if sentence}


def modules_to_preload(cases: Sequence[CaseRecord], *, on_gpu: bool) -> list[str]:
    """Return the names of modules that all workers need and that take long to import."""
    compiles = any("compiled" in (case.impl.name, case.impl.fields.get("of")) for case in cases)
    if on_gpu:
        profiles = any(measure.name == "profile" for case in cases for measure in case.measures)
        return ["torch._dynamo"] if compiles or profiles else []  # no Inductor: it starts CUDA, which survives no fork
    wanted = {implementations.kind(case.impl).__module__ for case in cases} | {"runner.timing.cpu"}
    wanted |= {f"runner.models.{case.workload.name}" for case in cases}
    if compiles:
        wanted.add("torch._inductor.compile_fx")
    return sorted(wanted)


def _print_now(text: str) -> None:
    """Print while this process waits for a lock: an event would be shown too late."""
    print(f"runner: {text}", file=sys.stderr, flush=True)


def _name(used: Sequence[Gpu]) -> str:
    return " and ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in used) or "the CPU"
