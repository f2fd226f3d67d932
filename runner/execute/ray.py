"""``launcher=ray``: actors of Ray on this machine or on a cluster, each of which runs a ``Local``."""

import contextlib
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from ..device import processes
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from . import CannotStart, Event, Limits, Notice, shards
from .local import Local
from .precompile import SPARE_CORES
from .shards import MOST_DEATHS_IN_A_ROW, Holder, Ledger, need, one_line, serve
from .spawn import Zygote

STORE_BYTES = 80 * 2**20  # shared memory: the least that Ray accepts, since events are small
ANSWER_S = 10.0  # for the head of a cluster to accept a connection
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
# When memory is short, the system kills a worker, and the actor goes on. Ray's monitor would kill the actor.
HERE = {"RAY_memory_monitor_refresh_ms": "0"}
LONGEST_WAIT_S = 1.0  # since Ctrl-C is not noticed while Ray waits
PATIENCE_S = 30.0  # until a notice that the cluster has no room
MOST_PIECES = 4  # pieces of the grid for each actor; each begins with a worker's start, which takes seconds


@dataclass(frozen=True, kw_only=True)
class Ray(Limits):
    """Actors of the Ray cluster at ``address``, or of a cluster on this machine that is started for the run."""

    address: str | None  # trusted, since its results are unpickled here
    actors: Annotated[int, "at least 1"] | None
    gpus_per_actor: Annotated[int, "at least 0"]
    cpus_per_actor: Annotated[int, "at least 1"]

    def __post_init__(self) -> None:
        need("ray", "ray")

    def run(self, cases: Sequence[CaseRecord], log_path: str, early: Zygote | None = None) -> Iterator[Event]:
        """Yield one row per case. Raises BadInput without such a cluster, CannotStart if all of its actors die."""
        gpus = shards.gpus_needed(cases, self.gpus_per_actor)
        with _connected(self.address) as ray:
            options = {"num_cpus": self.cpus_per_actor, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
            hosts = ray.remote(**options, scheduling_strategy="SPREAD")(Host)
            local = shards.local(self, gpus, precompile=max(0, self.cpus_per_actor - SPARE_CORES) // 2)
            folder = str(Path(log_path).parent.absolute())
            ray_actors = RayActors(ray, lambda name: hosts.remote(name, local, folder, os.getcwd()), cases)
            ray_actors.start(self.actors or self.room(ray.nodes(), gpus), at_once=max(1, gpus))
            try:
                yield from ray_actors.events()
            except KeyboardInterrupt:
                yield from ray_actors.drain()
                raise

    def room(self, nodes: Sequence[Mapping[str, Any]], gpus: int) -> int:
        """Return the number of actors with ``gpus`` GPUs that fit on the idle ``nodes``. Raises BadInput for none."""
        resources = [node["Resources"] for node in nodes if node["Alive"]]
        needed = {"CPU": self.cpus_per_actor, "GPU": gpus}
        room = sum(min(int(node.get(name, 0) // n) for name, n in needed.items() if n) for node in resources)
        if not room:
            available = "; ".join(f"{node.get('GPU', 0):g} GPUs and {node.get('CPU', 0):g} cores" for node in resources)
            each = "an actor" if gpus <= self.gpus_per_actor else "all ranks of a case, which run on one node"
            raise BadInput(
                f"launcher=ray: no node has {gpus} GPUs and {self.cpus_per_actor} cores for {each}: {available}; "
                "give launcher.gpus_per_actor=0 for the CPU, or launcher.actors if the cluster grows by itself"
            )
        return room


class Host:
    """The actor ``name``, which runs ``local`` on another machine.

    If this machine has them, ``folder`` is the run's folder, and relative paths of cases begin at ``cwd``.
    """

    def __init__(self, name: str, local: Local, folder: str, cwd: str) -> None:
        self._name, self._local, self._folder = name, local, folder
        with contextlib.suppress(OSError):
            os.chdir(cwd)

    def facts(self) -> dict[str, str]:
        """Return the names of this machine."""
        import ray

        context = ray.get_runtime_context()
        ids = ",".join(context.get_accelerator_ids().get("GPU", []))
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", ids)  # Ray can be configured not to set it
        return {"hostname": socket.gethostname(), "ray_node": context.get_node_id()}

    def run(self, cases: Sequence[CaseRecord]) -> Iterator[Event]:
        """Yield the events of ``cases``."""
        with tempfile.TemporaryDirectory(prefix="kernel-runner-") as folder:
            if Path(self._folder).is_dir():
                folder = f"{self._folder}/parts/{self._name}"
                os.makedirs(folder, exist_ok=True)
            yield from serve(self._local, cases, f"{folder}/worker.log", self.facts())


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Yield the module ``ray``, connected to the cluster. Raises BadInput."""
    os.environ.update(SETTINGS | ({} if address else HERE))
    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options["object_store_memory"] = STORE_BYTES
        options["runtime_env"] = {"env_vars": {"PYTHONPATH": processes.environment()["PYTHONPATH"]}}
    try:
        try:
            host, _, port = (address or "").rpartition(":")
            if host and port.isdigit():  # without an answer, Ray itself waits for two minutes
                socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
            ray.init(address or "local", **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise BadInput(f"launcher.address={address or 'null'}: {one_line(error)}") from None
        finally:
            with contextlib.suppress(ValueError):  # outside of the main thread, Ray has not set handlers either
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        yield ray
    finally:
        ray.shutdown()


class _Actor(Holder):
    """The driver's side of an actor. ``pending`` is its facts, then its stream of events."""

    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(name)
        self.handle, self.started = handle, False
        self.pending: Any = handle.facts.remote()


class RayActors:
    """The actors of a run. ``new(name)`` makes an actor."""

    def __init__(self, ray: Any, new: Callable[[str], Any], cases: Sequence[CaseRecord]) -> None:
        self._ray, self._new = ray, new
        self._node = ray.get_runtime_context().get_node_id()  # actors need Ray on this machine
        self.ledger = Ledger()
        self.ledger.add(cases)
        self._actors: list[_Actor] = []
        self._numbers = count()  # numbers of actors
        self._piece = 1  # problems that an actor gets at a time

    def start(self, most: int, at_once: int) -> None:
        """Start up to ``most`` actors, each of which runs ``at_once`` problems at a time."""
        actors = min(most, self.ledger.left)
        self._piece = max(at_once, self.ledger.left // (MOST_PIECES * actors))
        for _ in range(actors):
            self._add()

    def events(self) -> Iterator[Event]:
        """Yield events until each case has its row."""
        notice_at = time.monotonic() + PATIENCE_S
        while self.ledger.left or any(actor.owed or (actor.started and actor.pending) for actor in self._actors):
            for actor in self._actors:
                if actor.pending is None and self.ledger.left:
                    actor.give(self.ledger.take(self._piece))
                    run = actor.handle.run.options(num_returns="streaming")
                    actor.pending = run.remote([*actor.given.values()])
            pending = [actor.pending for actor in self._actors if actor.pending is not None]
            if self._ray.wait(pending, timeout=LONGEST_WAIT_S)[0]:
                ready, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
                for actor in [actor for actor in self._actors if any(actor.pending is stream for stream in ready)]:
                    yield from self._receive(actor)
            elif not any(node["Alive"] for node in self._ray.nodes() if node["NodeID"] == self._node):
                raise CannotStart("Ray has died on this machine; to go on: resume=last")
            if time.monotonic() > notice_at and not any(actor.started for actor in self._actors):
                notice_at = float("inf")
                yield Notice(f"no actor has started within {PATIENCE_S:g} s: waiting for room on the cluster")

    def drain(self) -> Iterator[Event]:
        """Yield the events that have arrived."""
        for actor in self._actors:
            with contextlib.suppress(StopIteration, self._ray.exceptions.RayError):
                while actor.owed and self._ray.wait([actor.pending], timeout=0)[0]:
                    if event := self._next(actor):
                        yield event

    def _add(self) -> None:
        name = f"actor-{next(self._numbers)}"
        self._actors.append(_Actor(self._new(name), name))

    def _receive(self, actor: _Actor) -> Iterator[Event]:
        """Process the next event of an actor, or its death."""
        try:
            if actor.started:
                if event := self._next(actor):
                    yield event
            else:
                actor.name += f" on {self._ray.get(actor.pending)['hostname']}"
                actor.started, actor.pending = True, None
        except StopIteration:
            actor.pending = None
            if actor.owed:
                yield from self._died(actor, "it ended before its cases were done")
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)  # the actor's exception, if any
            yield from self._died(actor, one_line(cause if isinstance(cause, BaseException) else error))

    def _next(self, actor: _Actor) -> Event | None:
        """Return the next event. Raises StopIteration at the end of the stream, RayError."""
        return self.ledger.note(actor, self._ray.get(next(actor.pending)))

    def _died(self, actor: _Actor, reason: str) -> Iterator[Event]:
        self._actors.remove(actor)
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor.handle)
        yield from self.ledger.died(actor, reason)
        if self.ledger.deaths_in_a_row < MOST_DEATHS_IN_A_ROW:
            if self.ledger.left:
                self._add()
        elif not self._actors:
            raise CannotStart(f"no actor of Ray could be kept alive: {reason}")
