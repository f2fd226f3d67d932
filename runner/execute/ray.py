"""``launcher=ray``: actors of Ray, on this machine or on a cluster, each with a ``Local`` inside."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from runner.device import processes
from runner.execute import CannotStart, Event, Notice, shards
from runner.execute.precompile import SPARE_CORES
from runner.execute.shards import MOST_DEATHS_IN_A_ROW, Holder, Ledger, Limits, need, one_line
from runner.execute.worker_process import Forker
from runner.experiment.case import CaseRecord
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
            crew = Crew(ray, hosts.remote, cases, (local, gpus, str(Path(log_path).parent.absolute())))
            crew.start(min(self.actors or self._room(ray, gpus), crew.ledger.left))
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
MOST_PIECES = 4  # for each actor, if all are as small as they get: each begins with seconds of starting

Task = tuple[Mapping[str, Any], int, str]  # of every actor: the fields of its Local, its GPUs, the folder of the run


class _Actor(Holder):
    """The driver's end of one. ``waiting`` is what Ray is to be waited on for: its hello, then the stream of events."""

    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(name)
        self.handle, self.part = handle, name
        self.facts: dict[str, str] = {}  # none before it is up
        self.waiting: Any = handle.hello.remote(os.getcwd())


class Crew:
    """The actors, and what they say."""

    def __init__(self, ray: Any, new: Callable[[], Any], cases: Sequence[CaseRecord], task: Task) -> None:
        self._ray, self._new, self._task = ray, new, task
        self.ledger = Ledger()
        self.ledger.add(cases)
        self._problems = self.ledger.left
        self._actors: list[_Actor] = []
        self._started = 0

    def start(self, count: int) -> None:
        """``count`` more of them."""
        for _ in range(count):
            self._actors.append(_Actor(self._new(), f"actor-{self._started}"))
            self._started += 1

    def events(self) -> Iterator[Event]:
        """Until every case has its row."""
        impatient = time.monotonic() + PATIENCE_S
        while self.ledger.left or any(actor.owed or (actor.facts and actor.waiting) for actor in self._actors):
            for actor in self._actors:
                if actor.waiting is None and self.ledger.left:
                    self._give(actor)
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

    def _give(self, actor: _Actor) -> None:
        _, gpus, _ = self._task
        chunk = self.ledger.take(share(len(self.ledger.problems), self._problems, len(self._actors), max(1, gpus)))
        actor.give(chunk)
        run = actor.handle.run.options(num_returns="streaming")
        actor.waiting = run.remote(actor.part, actor.facts, [case.to_record() for case in chunk], self._task)

    def _hear(self, actor: _Actor) -> Iterator[Event]:
        """What an actor has to say, or that it has died."""
        try:
            if actor.facts:
                if event := self._next(actor):
                    yield event
            else:
                actor.facts, actor.waiting = self._ray.get(actor.waiting), None
                actor.name += f" on {actor.facts['hostname']}"
        except StopIteration:
            actor.waiting = None
            if actor.owed:
                yield from self._died(actor, "it ended before its time")
        except self._ray.exceptions.RayError as error:
            yield from self._died(actor, _why(error))

    def _next(self, actor: _Actor) -> Event | None:
        """Raises StopIteration at the end of the stream, RayError."""
        return self.ledger.hear(actor, json.loads(self._ray.get(next(actor.waiting))))

    def _died(self, actor: _Actor, why: str) -> Iterator[Event]:
        self._actors.remove(actor)
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor.handle)
        yield from self.ledger.died(actor, why)
        if self.ledger.deaths_in_a_row < MOST_DEATHS_IN_A_ROW:
            self.start(min(1, self.ledger.left))
        elif not self._actors:
            raise CannotStart(f"no actor of Ray could be kept alive: {why}")


def share(left: int, total: int, hands: int, least: int) -> int:
    """How many of the ``left`` of ``total`` problems one of ``hands`` actors gets: fewer towards the end.

    At least ``least``, and at least so many that an actor is not started on more than ``MOST_PIECES`` shares.
    """
    return max(least, total // (MOST_PIECES * hands), left // (2 * hands))


def _why(error: Any) -> str:
    """What Ray says, in a line."""
    if isinstance(cause := getattr(error, "cause", None), BaseException):
        return one_line(cause)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line.partition("Worker exit detail:")[0].strip() for line in lines if "because" in line), lines[0])
