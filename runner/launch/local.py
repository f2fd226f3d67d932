"""``launcher=local``: one worker process on this machine, one case at a time.

The parent never imports torch, and alone turns whatever happens to a worker into a row. A worker that dies,
hangs or is spoiled costs its case, and is replaced.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from runner import child, impl
from runner.case import Case
from runner.launch import Event, Ready, Started
from runner.row import Phase, Row

Seconds = Annotated[float, "above 0"]


@dataclass(frozen=True)
class Local:
    """Limits are per phase: what a phase may take depends on what it does."""

    start_limit_s: Seconds
    build_limit_s: Seconds
    check_limit_s: Seconds
    measure_limit_s: Seconds

    def run(self, cases: Sequence[Case], log_path: str) -> Iterator[Event]:
        """One row per case. A worker is started when the first case needs one."""
        worker: _Worker | None = None
        try:
            for case in cases:
                if why := impl.build(case.impl).missing(case.workload.name):
                    yield Row(case=case, status="unsupported", reason=why, phase="plan")
                    continue
                if worker is None:
                    worker = _Worker(log_path)
                    try:
                        yield Ready(worker.environment(self.start_limit_s))
                    except _Gone as gone:
                        raise RuntimeError(f"no worker could be started: {gone}; see {log_path}") from None
                yield Started(case)
                row, alive = self._row(worker, case)
                yield row
                if not alive:
                    worker.kill()
                    worker = None
        finally:
            if worker is not None:
                worker.kill()

    def _row(self, worker: _Worker, case: Case) -> tuple[Row, bool]:
        """The case's row, and whether the worker can take another case."""
        limits = {
            "inputs": self.build_limit_s,
            "build": self.build_limit_s,
            "check": self.check_limit_s,
            "measure": self.measure_limit_s,
        }
        phase: Phase = "inputs"
        offset = worker.log_size()
        try:
            worker.send(case.to_record())
            while True:
                message = worker.receive(limits[phase])
                if "row" in message:
                    return Row.from_record(message["row"]), not message["spoiled"]
                phase = message["phase"]
        except TimeoutError:
            field = f"{'build' if phase == 'inputs' else phase}_limit_s"
            reason = f"no end of phase {phase} within {limits[phase]:g} s; raise launcher.{field} if it needs longer"
            return Row(case=case, status="timeout", reason=reason, phase=phase, detail=worker.log_tail(offset)), False
        except _Gone as gone:
            detail = worker.log_tail(offset)
            return Row(
                case=case, status="crashed", reason=f"{gone} in phase {phase}", phase=phase, detail=detail
            ), False


class _Gone(Exception):
    """The worker process has ended; the message says how."""


class _Worker:
    """A process running ``runner.launch.serve`` and our end of its channel."""

    def __init__(self, log_path: str) -> None:
        self._log_path = Path(log_path)
        ours, theirs = socket.socketpair()
        with theirs, open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runner.launch.serve", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,  # an input() in a kernel must not wait for ever
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child.environment() | {"PYTHONUNBUFFERED": "1"},  # so that the last words of a crash are kept
                start_new_session=True,  # Ctrl-C is the parent's to handle; and the whole group can be killed
            )
        self._channel = Connection(ours.detach())

    def environment(self, limit_s: float) -> dict[str, Any]:
        """What the worker says of itself once it is up. Raises _Gone."""
        try:
            facts: dict[str, Any] = self.receive(limit_s)["environment"]
        except TimeoutError:
            raise _Gone(f"it did not start within {limit_s:g} s (launcher.start_limit_s)") from None
        return facts

    def send(self, message: object) -> None:
        """Raises _Gone."""
        try:
            self._channel.send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._gone() from None

    def receive(self, limit_s: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, _Gone."""
        deadline = time.monotonic() + limit_s
        try:
            while not self._channel.poll(min(1.0, max(0.0, deadline - time.monotonic()))):
                if self._process.poll() is not None and not self._channel.poll(0):
                    raise self._gone()  # a grandchild may hold the channel open after it
                if time.monotonic() >= deadline:
                    raise TimeoutError
            message: dict[str, Any] = json.loads(self._channel.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._gone() from None
        return message

    def kill(self) -> None:
        """End it and everything it started."""
        child.kill_group(self._process)
        self._channel.close()

    def log_size(self) -> int:
        """Bytes the worker has printed so far."""
        return self._log_path.stat().st_size

    def log_tail(self, offset: int, most: int = 4000) -> str:
        """The end of what it has printed since ``offset``."""
        with open(self._log_path, "rb") as log:
            log.seek(max(offset, self.log_size() - most))
            return log.read().decode(errors="replace")

    def _gone(self) -> _Gone:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return _Gone("the worker closed its channel")
        if code < 0:
            return _Gone(f"the worker was killed by {signal.Signals(-code).name}")
        return _Gone(f"the worker exited with code {code}")
