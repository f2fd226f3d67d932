"""``launcher=local``: worker processes on this machine, one for each GPU, or for as many GPUs as a case needs.

The parent never imports torch. It turns everything that happens to a worker into a row.
"""

from __future__ import annotations

import resource
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

from .. import implementations
from ..device import gpus, processes
from ..device.gpus import Gpu
from ..device.lock import acquire_all
from ..records.case import CaseRecord
from ..records.debugging import DEBUG_ENVIRONMENT, DETERMINISTIC_ENVIRONMENT
from ..records.grouping import grouped
from ..records.row import Row
from . import CannotStart, Event, Limits, Notice
from .device_queue import DeviceQueue
from .precompile import WORTH, Precompiler, compiled, process_count
from .spawn import Gone, Spawner, Zygote
from .worker_process import WorkerProcess

SOURCES = (Zygote, Spawner) if sys.platform == "linux" else (Spawner,)  # ways to start workers, the best first
MOST_RANKS_PER_CORE = 4  # processes with torch in each; a few share a core so that a program can be tried
LEAST_ROOM = 10**9  # bytes of address space; a worker takes 0.83 GB on a CPU
STOPPED_S = 2.0  # a wait that takes so much longer means that this process could not run
LONGEST_WAIT_S = 1.0  # in which a passed time limit of a worker may go unnoticed


@dataclass(frozen=True, kw_only=True)
class Local(Limits):
    """Worker processes on this machine."""

    gpus: str | int
    precompile: Annotated[int, "at least 0"] | None

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Zygote | None = None) -> Iterator[Event]:
        """Yield one row per case. Raises CannotStart.

        Cases that differ in ``debug`` or ``deterministic_algorithms`` run in different workers, since their environment
        must be set before anything is imported. Cases on the CPU do not run at the same time as cases on GPUs.
        """
        room = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= room < LEAST_ROOM:  # the import of torch would fail, or hang
            allowed = f"ulimit -v allows {room / 1e6:.0f} MB of address space"
            raise CannotStart(f"no worker can be started: {allowed}, and torch takes about 1 GB; raise the limit")

        def kind(case: CaseRecord) -> tuple[str | None, bool, bool, int]:
            settings = case.settings
            return settings.debug, settings.deterministic_algorithms, settings.device == "cpu", case.ranks

        for (debug, deterministic, *_), same_kind in grouped(cases, kind).items():
            environment = {**DEBUG_ENVIRONMENT.get(debug, {}), **(DETERMINISTIC_ENVIRONMENT if deterministic else {})}
            yield from self._run(same_kind, Path(log_path), environment, None if environment else early)
            early = early if environment else None

    def _run(
        self, cases: Sequence[CaseRecord], path: Path, environment: Mapping[str, str], early: Zygote | None
    ) -> Iterator[Event]:
        """Run ``cases``, all in workers with ``environment``."""
        devices = self._devices(cases)[: max(1, len({case.problem for case in cases}))]
        ranks, cores = cases[0].ranks, processes.cores()
        reason = ""
        if not devices:
            available = len(self._chosen(gpus.visible(), ranks))
            reason = f"needs {ranks} GPUs, one for each rank; launcher.gpus={self.gpus} provides {available}"
        elif devices == [()] and ranks > MOST_RANKS_PER_CORE * cores:
            reason = f"{ranks} ranks are too many for {cores} CPU cores; at most {MOST_RANKS_PER_CORE * cores} run here"
        if reason:
            yield from (Row(case=case, status="unsupported", reason=reason, phase="plan") for case in cases)
            return
        used = [gpu for device in devices for gpu in device]
        blocks, preload = _Blocks(cases), modules_to_preload(cases, on_gpu=bool(used))
        with ExitStack() as stack:
            # Printed at once, since this process waits for a lock: an event would be shown too late.
            locks = acquire_all(used, lambda text: print(f"runner: {text}", file=sys.stderr, flush=True))
            for lock in locks:
                stack.callback(lock.release)
            now = {gpu.uuid: gpu for gpu in gpus.visible()} if used else {}
            # Other processes use a GPU although this process has its lock.
            shared = {gpu: sentence for gpu in used if (sentence := gpus.busy(now.get(gpu.uuid, gpu)))}
            yield from map(Notice, shared.values())
            sources = [early if early and kind is Zygote else kind(environment) for kind in SOURCES]
            for source in sources:
                stack.callback(source.close)
                source.begin(path, preload, [lock.fileno() for lock in locks], self.start_limit_s)
            waiting = [] if len(cases) < WORTH or self.precompile == 0 or ranks else compiled(cases)
            count = process_count(self.precompile, cores, len(waiting), used)
            precompiler = Precompiler(sources[0], path.with_name("precompile.log"), devices, count, waiting)
            queues = []
            for device in devices:
                log = path.with_name(f"worker-{device[0].index}.log") if len(devices) > 1 else path
                other_users = "; ".join(shared[gpu] for gpu in device if gpu in shared)
                room = precompiler.make_room
                queues.append(DeviceQueue(device, sources, log, self, blocks.take, room, other_users, ranks))
            try:
                yield from map(precompiler.observe, self._serve(queues, blocks, precompiler, path))
            except KeyboardInterrupt:  # rows that have arrived are kept
                for queue in queues:
                    with suppress(Gone):
                        yield from map(precompiler.observe, queue.drain())
                raise

    def _serve(
        self, queues: Sequence[DeviceQueue], blocks: _Blocks, precompiler: Precompiler, path: Path
    ) -> Iterator[Event]:
        """Run the queues until each case has its row."""
        active = [*queues]
        while active:
            for queue in [*active]:
                yield from queue.advance()
                if reason := queue.cannot_start:
                    blocks.give_back(queue)
                    active.remove(queue)
                    if not active:
                        raise CannotStart(f"no worker could be started: {reason}; see {path}")
                    name = " and ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in queue.gpus) or "the CPU"
                    yield Notice(f"{name} is out of service, others do its work: {reason}")
            workers = [queue.worker for queue in active if queue.worker and queue.busy]
            if not workers:
                if blocks.left:  # a queue gave blocks back after the others had found none
                    continue
                return
            precompiler.advance()
            _wait(workers, precompiler.watched)
            for queue in active:
                if queue.busy:
                    yield from queue.handle()
                    queue.pause_spare()
                    precompiler.pause_for([other.gpus for other in active if other.measuring])

    def _devices(self, cases: Sequence[CaseRecord]) -> list[tuple[Gpu, ...]]:
        """Return sets of as many GPUs as each case needs, or [()] for the CPU. Raises BadInput for a missing GPU."""
        if all(case.settings.device == "cpu" for case in cases):
            return [()]
        visible = gpus.visible()
        if not visible and str(self.gpus) in gpus.ANYWHERE:
            return [()]
        chosen, count = self._chosen(visible, cases[0].ranks), max(1, cases[0].ranks)
        return [tuple(chosen[place : place + count]) for place in range(0, len(chosen) - count + 1, count)]

    def _chosen(self, visible: Sequence[Gpu], ranks: int) -> Sequence[Gpu]:
        """Return the GPUs to use: by default the first, or the first ones of so many ranks."""
        by_default = str(self.gpus) == "0" and ranks > 1
        return visible[:ranks] if by_default else gpus.select_gpus(str(self.gpus), visible)


class _Blocks:
    """Blocks of cases that run in one worker. All blocks of a problem run on one device, so that they compare."""

    def __init__(self, cases: Sequence[CaseRecord]) -> None:
        by_problem = groupby(cases, key=lambda case: (case.replica, case.problem))
        self.left = deque(list(block) for _, block in by_problem)  # blocks that no queue has taken
        self._queues: dict[str, DeviceQueue] = {}  # by problem

    def take(self, queue: DeviceQueue) -> Sequence[CaseRecord]:
        """Return the next block of ``queue``'s problems or of a new problem; () if there is none."""
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


def _wait(workers: Sequence[WorkerProcess], others: Sequence[int]) -> None:
    """Wait for the workers and the descriptors ``others``, or for the first deadline.

    If this process was stopped meanwhile, by ``docker pause`` or Slurm, so were the workers: their
    deadlines move by that time.
    """
    began = time.monotonic()
    longest = max(0.0, min(LONGEST_WAIT_S, *(worker.deadline - began for worker in workers)))
    wait([*(descriptor for worker in workers for descriptor in worker.watched), *others], longest)
    if (stopped := time.monotonic() - began - longest) > STOPPED_S:
        for worker in workers:
            worker.deadline += stopped


def modules_to_preload(cases: Sequence[CaseRecord], *, on_gpu: bool) -> list[str]:
    """Return the names of modules that all workers need and that take long to import."""
    compiles = any("compiled" in (case.impl.name, case.impl.fields.get("of")) for case in cases)
    if on_gpu:
        profiles = any(measure.name == "profile" for case in cases for measure in case.measures)
        # No Inductor, which starts CUDA: CUDA does not survive a fork.
        return ["torch._dynamo"] if compiles or profiles else []
    modules = {implementations.kind(case.impl).__module__ for case in cases} | {"kernel_runner.timing.cpu"}
    modules |= {f"kernel_runner.models.{case.workload.name}" for case in cases if "path" not in case.workload.fields}
    if compiles:
        modules.add("torch._inductor.compile_fx")
    return sorted(modules)
