"""``launcher=local``: worker processes on this machine, one a GPU, each one case at a time.

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

from runner import child, debug, impl
from runner.case import Case
from runner.launch import CannotStart, Event, Notice, gpus
from runner.launch.ahead import Ahead, compiled, processes
from runner.launch.gpus import Gpu
from runner.launch.lock import acquire_all
from runner.launch.slot import OutOfService, Slot
from runner.launch.worker_process import Gone, Spawner, Zygote
from runner.row import Phase

Seconds = Annotated[float, "above 0"]
SOURCES = (Zygote, Spawner) if sys.platform == "linux" else (Spawner,)  # of workers: the best first
LONGEST_WAIT_S = 1.0  # between two looks at whether a worker is late


@dataclass(frozen=True)
class Local:
    """Limits are per phase: what a phase may take depends on what it does."""

    gpus: str | int
    ahead: Annotated[int, "at least 0"] | None
    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds

    def limit(self, phase: Phase) -> tuple[float, str]:
        """The longest that ``phase`` may take, and the field that says so."""
        field = {"inputs": "build_limit_s", "compare": "measure_limit_s"}.get(phase, f"{phase}_limit_s")
        limit: float = getattr(self, field)
        return limit, field

    def run(self, cases: Sequence[Case], log_path: str) -> Iterator[Event]:
        """One row per case. Workers are started when the first case needs one. Raises CannotStart.

        An aid for finding faults may want its environment set before anything is imported, so each has its own workers.
        Those on the CPU come one at a time too, and not beside others on GPUs.
        """
        kinds: dict[tuple[str | None, bool], list[Case]] = {}
        for case in cases:
            kinds.setdefault((case.debug, case.device == "cpu"), []).append(case)
        for (aid, _), some in kinds.items():
            yield from self._run(some, log_path, debug.environment(aid))

    def _run(self, cases: Sequence[Case], log_path: str, environment: Mapping[str, str]) -> Iterator[Event]:
        """All in workers with ``environment``."""
        blocks = _blocks(cases)
        devices = self._devices(cases)[: max(1, len({case.point for case in cases}))]
        path, plan = Path(log_path), _Plan(blocks)
        logs = [path.with_name(f"worker-{gpu.index}.log") if gpu and len(devices) > 1 else path for gpu in devices]
        with ExitStack() as stack:
            locks = acquire_all([gpu for gpu in devices if gpu], _say)
            for lock in locks:
                stack.callback(lock.release)
            shared = _shared(devices)
            for sentence in shared.values():
                yield Notice(sentence)
            held = [lock.fileno() for lock in locks]
            preload = _preload(cases, devices)
            sources = [kind(path, self.start_limit_s, preload, held, environment) for kind in SOURCES]
            for source in sources:
                stack.callback(source.close)
            slots = [
                Slot(gpu, sources, log, self, plan.take, shared.get(gpu.uuid if gpu else "", ""))
                for gpu, log in zip(devices, logs, strict=True)
            ]
            yield from self._serve(slots, plan, path, self._ahead(sources[0], path, devices, cases, slots, stack))

    def _ahead(
        self,
        zygote: Zygote | Spawner,
        path: Path,
        devices: Sequence[Gpu | None],
        cases: Sequence[Case],
        slots: Sequence[Slot],
        stack: ExitStack,
    ) -> Ahead | None:
        """Who compiles the coming cases, if that is worth a process."""
        waiting = compiled(cases)
        count = processes(self.ahead, child.cores(), len(waiting), devices)
        if not count:
            return None
        ahead = Ahead(zygote, path.with_name("ahead.log"), devices, count, waiting, self.start_limit_s)
        stack.callback(ahead.close)
        for slot in slots:
            slot.ahead = ahead
        return ahead

    def _serve(self, slots: list[Slot], plan: _Plan, path: Path, ahead: Ahead | None) -> Iterator[Event]:
        """Until every case has its row. Interrupted, it hands on what workers have sent already, and begins no more."""
        try:
            yield from self._until_done(slots, plan, path, ahead)
        except KeyboardInterrupt:
            for slot in slots:
                with suppress(Gone):
                    yield from slot.last_words()
            raise

    def _until_done(self, slots: list[Slot], plan: _Plan, path: Path, ahead: Ahead | None) -> Iterator[Event]:
        while slots:
            for slot in list(slots):
                try:
                    yield from slot.advance()
                except OutOfService as reason:
                    plan.give_back(slot)
                    slots.remove(slot)
                    if not slots:
                        raise CannotStart(f"no worker could be started: {reason}; see {path}") from None
                    yield Notice(f"{_name(slot.gpu)} is out of service, others do its work: {reason}")
            waiting = [slot for slot in slots if slot.busy]
            if not waiting:
                if plan.left:  # given back after the others had asked for more
                    continue
                return
            workers = [slot.worker for slot in waiting if slot.worker]
            soonest = min(worker.deadline for worker in workers) - time.monotonic()
            watched = [one for worker in workers for one in worker.watched]
            if ahead:
                ahead.advance()
                watched += ahead.watched
            wait(watched, max(0.0, min(soonest, LONGEST_WAIT_S)))
            for slot in waiting:
                yield from slot.handle()
                slot.make_way()
                if ahead:
                    ahead.make_way(one.gpu for one in slots if one.measuring)

    def _devices(self, cases: Sequence[Case]) -> list[Gpu | None]:
        """The GPUs to use, or the CPU as None. Raises BadInput if one is asked for that is not there."""
        if all(case.device == "cpu" for case in cases):
            return [None]
        found = gpus.visible()
        return [*gpus.choose(str(self.gpus), found)] if found or str(self.gpus) not in gpus.ANYWHERE else [None]


class _Plan:
    """Blocks of cases that are to run in one process; those of one point all on one GPU, so that they compare."""

    def __init__(self, blocks: Sequence[Sequence[Case]]) -> None:
        self._left = deque(blocks)
        self._place: dict[str, Slot] = {}  # of each point

    @property
    def left(self) -> bool:
        """There are blocks that nobody has taken."""
        return bool(self._left)

    def take(self, slot: Slot) -> Sequence[Case]:
        """The next block that belongs to ``slot``, or to nobody yet; empty if there is none."""
        for block in self._left:
            if self._place.get(block[0].point, slot) is slot:
                self._left.remove(block)
                self._place[block[0].point] = slot
                return block
        return ()

    def give_back(self, slot: Slot) -> None:
        """``slot`` is out of service: what is left of its block comes next, on another GPU."""
        self._place = {point: other for point, other in self._place.items() if other is not slot}
        if slot.block:
            self._left.appendleft(list(slot.block))


def _shared(devices: Sequence[Gpu | None]) -> dict[str, str]:
    """By UUID, a sentence for each GPU that others use although its lock is ours."""
    if not any(devices):
        return {}
    now = {gpu.uuid: gpu for gpu in gpus.visible()}
    found = {gpu.uuid: gpus.busy(now.get(gpu.uuid, gpu)) for gpu in devices if gpu}
    return {uuid: sentence for uuid, sentence in found.items() if sentence}


def _blocks(cases: Sequence[Case]) -> list[list[Case]]:
    """Neighbours of one point and one replica."""
    return [list(block) for _, block in groupby(cases, key=lambda case: (case.replica, case.point))]


def _preload(cases: Sequence[Case], devices: Sequence[Gpu | None]) -> list[str]:
    """Modules that all workers will need, and that take a second to import."""
    compiles = any("compiled" in (case.impl.name, case.impl.fields.get("of")) for case in cases)
    if any(devices):
        profiles = any(measure.name == "profile" for case in cases for measure in case.measures)
        return ["torch._dynamo"] if compiles or profiles else []  # no Inductor: it starts CUDA, which survives no fork
    wanted = {impl.kind(case.impl).__module__ for case in cases} | {"runner.measure.cpu"}
    wanted |= {f"models.{case.workload.name}" for case in cases}
    if compiles:
        wanted.add("torch._inductor.compile_fx")
    return sorted(wanted)


def _say(text: str) -> None:
    """Now, and not when the waiting is over."""
    print(f"runner: {text}", file=sys.stderr, flush=True)


def _name(gpu: Gpu | None) -> str:
    return "the CPU" if gpu is None else f"GPU {gpu.index} ({gpu.uuid})"
