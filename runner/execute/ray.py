"""``launcher=ray``: actors of Ray, on this machine or on a cluster, each with a ``Local`` inside.

Who of them does what is decided in ``runner.execute.crew``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from runner.device import processes
from runner.execute import Event, remote
from runner.execute.crew import Crew, Task, Work
from runner.execute.precompile import SPARE_CORES
from runner.execute.remote import Limits, need, one_line
from runner.experiment.case import Case
from runner.experiment.errors import BadInput
from runner.experiment.schema import Program

STORE_BYTES = 80 * 2**20  # of shared memory, the least that Ray takes: records are small
ANSWER_S = 10.0  # that the head of a cluster may take
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
HERE = {"RAY_memory_monitor_refresh_ms": "0"}  # out of memory, the kernel takes a worker, and Ray would take the actor


@dataclass(frozen=True, kw_only=True)
class Ray(Limits):
    """``address`` None: a Ray of our own on this machine, ended with the run."""

    address: Program | None  # who answers there sends back what is unpickled here
    actors: Annotated[int, "at least 1"] | None
    gpus_per_actor: Annotated[int, "at least 0"]
    cpus_per_actor: Annotated[int, "at least 1"]

    def __post_init__(self) -> None:
        need("ray", "ray")

    def run(self, cases: Sequence[Case], log_path: str) -> Iterator[Event]:
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
            crew.hire(min(self.actors or self._room(ray, gpus), work.left))
            try:
                yield from crew.events()
            except KeyboardInterrupt:
                yield from crew.last_words()
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
            cases = [Case.from_record(record) for record in records]
            for event in remote.serve(local, cases, str(own / "worker.log"), gpus, facts):
                yield json.dumps(remote.to_record(event))


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
