"""``launcher=ray``: actors of Ray, on this machine or on a cluster, each with a ``Local`` inside.

Who of them does what is decided in ``runner.execute.ray``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from runner.device import processes
from runner.execute import CannotStart, Event, Notice, Started, shards
from runner.execute.precompile import SPARE_CORES
from runner.execute.shards import MOST_DEATHS, Limits, need, one_line
from runner.execute.worker_process import Forker
from runner.experiment.case import CaseRecord
from runner.experiment.results import Row
from runner.experiment.schema import BadInput

STORE_BYTES = 80 * 2**20  # of shared memory, the least that Ray takes: records are small
ANSWER_S = 10.0  # that the head of a cluster may take
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
HERE = {"RAY_memory_monitor_refresh_ms": "0"}  # out of memory, the kernel takes a worker, and Ray would take the actor


@dataclass(frozen=True, kw_only=True)
class Ray(Limits):
    """``address`` None: a Ray of our own on this machine, ended with the run."""

    address: str | None  # who answers there sends back what is unpickled here
    actors: Annotated[int, "at least 1"] | None
    gpus_per_actor: Annotated[int, "at least 0"]
    cpus_per_actor: Annotated[int, "at least 1"]

    def __post_init__(self) -> None:
        need("ray", "ray")

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Forker | None = None) -> Iterator[Event]:
        """One row per case. Raises BadInput if there is no such cluster, CannotStart if its actors do not live."""
        gpus = 0 if all(case.device == "cpu" for case in cases) else self.gpus_per_actor
        with _connected(self.address) as ray:
            hosts = ray.remote(
                num_cpus=self.cpus_per_actor,
                num_gpus=gpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy="SPREAD",
            )(Host)
            local = self.local(gpus, ahead=max(0, self.cpus_per_actor - SPARE_CORES) // 2)
            work = Work(cases, max(1, gpus))
            crew = Crew(ray, hosts.remote, work, (local, gpus, str(Path(log_path).parent.absolute())))
            crew.start(min(self.actors or self._room(ray, gpus), work.left))
            try:
                yield from crew.events()
            except KeyboardInterrupt:
                yield from crew.drain()
                raise

    def _room(self, ray: Any, gpus: int) -> int:
        """Actors that fit on the nodes as they are now, if nobody else is there. Raises BadInput if none does."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {"CPU": self.cpus_per_actor, "GPU": gpus}
        room = sum(min(int(node.get(name, 0) // count) for name, count in wanted.items() if count) for node in nodes)
        if not room:
            there = "; ".join(f"{node.get('GPU', 0):g} GPUs and {node.get('CPU', 0):g} cores" for node in nodes)
            raise BadInput(
                f"launcher=ray: no node has {gpus} GPUs and {self.cpus_per_actor} cores for an actor: {there}; "
                "give launcher.gpus_per_actor=0 for the CPU, or launcher.actors if the cluster grows by itself"
            )
        return room


class Host:
    """The actor: what runs on another machine."""

    def hello(self, folder: str) -> dict[str, str]:
        """Who this is. ``folder`` is where the command was typed: relative paths hold there, if there is such a one."""
        import ray

        with contextlib.suppress(OSError):
            os.chdir(folder)
        context = ray.get_runtime_context()
        ids = ",".join(context.get_accelerator_ids().get("GPU", []))
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", ids)  # which Ray can be told to leave as it is
        return {"hostname": socket.gethostname(), "ray_node": context.get_node_id()}

    def run(self, name: str, facts: Mapping[str, str], records: Sequence[Any], task: Task) -> Iterator[str]:
        """Events as JSON, of the cases that ``records`` are of."""
        local, gpus, folder = task
        with ExitStack() as stack:
            if Path(folder).is_dir():  # it is to be seen from here too
                own = Path(folder, "parts", name)
                own.mkdir(parents=True, exist_ok=True)
            else:
                own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-runner-")))
            cases = [CaseRecord.from_record(record) for record in records]
            for event in shards.serve(local, cases, str(own / "worker.log"), gpus, facts):
                yield json.dumps(shards.to_record(event))


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster. Raises BadInput."""
    os.environ.update(SETTINGS | ({} if address else HERE))
    import ray

    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    own: dict[str, Any] = {}
    if address is None:
        own["object_store_memory"] = STORE_BYTES
        own["runtime_env"] = {"env_vars": {"PYTHONPATH": processes.environment()["PYTHONPATH"]}}
    try:
        try:
            _answers(address)
            ray.init(
                address or "local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **own
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise BadInput(f"launcher.address={address or 'null'}: {one_line(error)}") from None
        finally:
            with contextlib.suppress(ValueError):  # not the main thread: then Ray has set none either
                for one, handler in handlers.items():
                    signal.signal(one, handler)
        yield ray
    finally:
        ray.shutdown()


def _answers(address: str | None) -> None:
    """Raises OSError if nobody does, which Ray itself takes two minutes to say."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()


LONGEST_WAIT_S = 1.0  # in which Ray does not hear Ctrl-C
PATIENCE_S = 30.0  # until the user is told that there is no room
MOST_PIECES = 4  # for each actor, if all are as small as they get
MOST_FAILED_STARTS = 3  # actors in a row that die while no case is finished

Task = tuple[Mapping[str, Any], int, str]  # of every actor: the fields of its Local, its GPUs, the folder of the run


class Work:
    """What is still to be given out, ``least`` problems at a time."""

    def __init__(self, cases: Sequence[CaseRecord], least: int) -> None:
        self._order = {case.key: (case.replica, place) for place, case in enumerate(cases)}
        self._points = deque(shards.problems(cases))
        self._suspects: deque[CaseRecord] = deque()  # each was in flight when an actor died
        self._deaths: Counter[str] = Counter()
        self._least, self._all = least, len(self._points)

    @property
    def left(self) -> int:
        """Points and suspects."""
        return len(self._points) + len(self._suspects)

    def take(self, hands: int) -> list[CaseRecord]:
        """The next problems for one of ``hands`` actors; a suspect is the last to go, and alone."""
        if not self._points:
            return [self._suspects.popleft()] if self._suspects else []
        fewest = max(self._least, self._all // (MOST_PIECES * hands))  # each begins with seconds of starting
        count = min(len(self._points), max(fewest, len(self._points) // (2 * hands)))
        chunk = [case for _ in range(count) for case in self._points.popleft()]
        return sorted(chunk, key=lambda case: self._order[case.key])

    def give_back(self, owed: Sequence[CaseRecord], in_flight: Sequence[CaseRecord]) -> list[CaseRecord]:
        """An actor has died with ``in_flight`` among what it ``owed``. Those that are not to be tried again."""
        self._deaths.update(case.key for case in in_flight)
        given_up = [case for case in in_flight if self._deaths[case.key] >= MOST_DEATHS]
        self._suspects.extend(case for case in owed if self._deaths[case.key] and case not in given_up)
        self._points.extendleft(reversed(shards.problems(case for case in owed if not self._deaths[case.key])))
        return given_up


class _Actor:
    """The driver's end of one. ``waiting`` is what Ray is to be waited on for: its hello, then the stream of events."""

    def __init__(self, handle: Any, name: str) -> None:
        self.handle, self.name = handle, name
        self.facts: dict[str, str] = {}  # none before it is up
        self.given: dict[str, CaseRecord] = {}
        self.owed: dict[str, CaseRecord] = {}  # those of them without a row
        self.in_flight: dict[str, CaseRecord] = {}
        self.waiting: Any = handle.hello.remote(os.getcwd())

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.name} on {self.facts['hostname']}" if self.facts else self.name

    def heard(self, event: Event) -> None:
        """Keep account of ``event``."""
        if isinstance(event, Started):
            self.in_flight[event.case.key] = event.case
        elif isinstance(event, Row):
            self.owed.pop(event.case.key, None)
            self.in_flight.pop(event.case.key, None)


class Crew:
    """The actors, and what they say."""

    def __init__(self, ray: Any, new: Callable[[], Any], work: Work, task: Task) -> None:
        self._ray, self._new, self._work, self._task = ray, new, work, task
        self._actors: list[_Actor] = []
        self._started = self._failed_starts = 0

    def start(self, count: int) -> None:
        """``count`` more of them."""
        for _ in range(count):
            self._actors.append(_Actor(self._new(), f"actor-{self._started}"))
            self._started += 1

    def events(self) -> Iterator[Event]:
        """Until every case has its row."""
        impatient = time.monotonic() + PATIENCE_S
        while self._work.left or any(actor.owed or (actor.facts and actor.waiting) for actor in self._actors):
            for actor in self._actors:
                if actor.waiting is None and (chunk := self._work.take(len(self._actors))):
                    self._give(actor, chunk)
            waiting = [actor.waiting for actor in self._actors if actor.waiting is not None]
            if self._ray.wait(waiting, timeout=LONGEST_WAIT_S)[0]:
                ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
                for actor in [actor for actor in self._actors if any(actor.waiting is one for one in ready)]:
                    yield from self._hear(actor)
            if time.monotonic() > impatient and not any(actor.facts for actor in self._actors):
                impatient = float("inf")
                yield Notice(f"no actor has started within {PATIENCE_S:g} s: waiting for room on the cluster")

    def drain(self) -> Iterator[Event]:
        """What has come in already."""
        for actor in self._actors:
            with contextlib.suppress(StopIteration, self._ray.exceptions.RayError):
                while actor.owed and self._ray.wait([actor.waiting], timeout=0)[0]:
                    if event := self._next(actor):
                        yield event

    def _give(self, actor: _Actor, chunk: Sequence[CaseRecord]) -> None:
        actor.given = {case.key: case for case in chunk}
        actor.owed = {**actor.given}
        records = [case.to_record() for case in chunk]
        run = actor.handle.run.options(num_returns="streaming")
        actor.waiting = run.remote(actor.name, actor.facts, records, self._task)

    def _hear(self, actor: _Actor) -> Iterator[Event]:
        """What an actor has to say, or that it has died."""
        try:
            if actor.facts:
                event = self._next(actor)
            else:
                event = None
                actor.facts, actor.waiting = self._ray.get(actor.waiting), None
        except StopIteration:
            actor.waiting = None
            if actor.owed:
                yield from self._died(actor, "it ended before its time")
        except self._ray.exceptions.RayError as error:
            yield from self._died(actor, _why(error))
        else:
            if event:
                yield event

    def _next(self, actor: _Actor) -> Event | None:
        """Raises StopIteration at the end of the stream, RayError."""
        event = shards.from_record(json.loads(self._ray.get(next(actor.waiting))), actor.given)
        if event is not None:
            actor.heard(event)
            self._failed_starts = 0 if isinstance(event, Row) else self._failed_starts
        return event

    def _died(self, actor: _Actor, why: str) -> Iterator[Event]:
        self._actors.remove(actor)
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor.handle)
        owed = [*actor.owed.values()]
        given_up = self._work.give_back(owed, [*actor.in_flight.values()] or owed[:1])  # its last word may be lost
        for case in given_up:
            yield shards.lost(case, f"in flight when its actor died, for the second time: {actor.where}, {why}")
        left = len(owed) - len(given_up)
        yield Notice(f"{actor.where} has died: {why}" + (f"; cases left for another: {left}" if left else ""))
        self._failed_starts = 0 if given_up else self._failed_starts + 1
        if self._failed_starts < MOST_FAILED_STARTS:
            self.start(min(1, self._work.left))
        elif not self._actors:
            raise CannotStart(f"no actor of Ray could be kept alive: {why}")


def _why(error: Any) -> str:
    """What Ray says, in a line."""
    if isinstance(cause := getattr(error, "cause", None), BaseException):
        return one_line(cause)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line.partition("Worker exit detail:")[0].strip() for line in lines if "because" in line), lines[0])
