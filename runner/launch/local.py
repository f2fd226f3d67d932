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
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from runner import child, impl
from runner.case import Case
from runner.launch import Event, Ready, Started
from runner.rounds import Rounds
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
            for _, point in groupby(cases, key=lambda case: (case.replica, case.point)):
                comparable = 0
                for case in point:
                    if why := impl.build(case.impl).missing(case.workload.name):
                        yield Row(case=case, status="unsupported", reason=why, phase="plan")
                        continue
                    if worker is not None and worker.replica != case.replica:
                        worker.kill()
                        worker = None
                    if worker is None:
                        comparable = 0
                        worker = _Worker(log_path, case.replica)
                        try:
                            yield Ready(worker.environment(self.start_limit_s))
                        except _Gone as gone:
                            raise RuntimeError(f"no worker could be started: {gone}; see {log_path}") from None
                    yield Started(case)
                    row, alive = self._row(worker, case)
                    yield row
                    comparable += row.time_us is not None
                    if not alive:
                        worker.kill()
                        worker = None
                if worker is not None and comparable > 1:
                    rounds, alive = self._rounds(worker)
                    yield rounds
                    if not alive:
                        worker.kill()
                        worker = None
        finally:
            if worker is not None:
                worker.kill()

    def _row(self, worker: _Worker, case: Case) -> tuple[Row, bool]:
        """The case's row, and whether the worker can take another case."""
        offset = worker.log_size()
        try:
            worker.send({"case": case.to_record()})
            answer = self._answer(worker, "inputs")
        except _Late as late:
            return Row(
                case=case, status="timeout", reason=str(late), phase=late.phase, detail=worker.log_tail(offset)
            ), False
        except _Gone as gone:
            reason = f"{gone} in phase {worker.phase}"
            return Row(
                case=case, status="crashed", reason=reason, phase=worker.phase, detail=worker.log_tail(offset)
            ), False
        return Row.from_record(answer["row"]), not answer["spoiled"]

    def _rounds(self, worker: _Worker) -> tuple[Rounds, bool]:
        """The comparison of the cases since the last one, and whether the worker can take another case."""
        try:
            worker.send({})
            return Rounds.from_record(self._answer(worker, "compare")["rounds"]), True
        except (_Late, _Gone) as error:
            return Rounds(reason=f"not compared side by side: {error}"), False

    def _answer(self, worker: _Worker, phase: Phase) -> dict[str, Any]:
        """What the worker says when all phases, of which ``phase`` is the first, are done. Raises _Late, _Gone."""
        worker.phase = phase
        while True:
            limit, field = self._limit(worker.phase)
            try:
                message = worker.receive(limit)
            except TimeoutError:
                raise _Late(worker.phase, limit, field) from None
            if "phase" not in message:
                return message
            worker.phase = message["phase"]

    def _limit(self, phase: Phase) -> tuple[float, str]:
        """The longest that ``phase`` may take, and the field that says so."""
        field = {"inputs": "build_limit_s", "compare": "measure_limit_s"}.get(phase, f"{phase}_limit_s")
        limit: float = getattr(self, field)
        return limit, field


class _Late(Exception):
    """A phase has passed its limit; the message says which, and what to do."""

    def __init__(self, phase: Phase, limit: float, field: str) -> None:
        super().__init__(f"no end of phase {phase} within {limit:g} s; raise launcher.{field} if it needs longer")
        self.phase = phase


class _Gone(Exception):
    """The worker process has ended; the message says how."""


class _Worker:
    """A process running ``runner.launch.serve`` and our end of its channel."""

    def __init__(self, log_path: str, replica: int) -> None:
        self.replica = replica  # whose cases it takes: the next ones are to run in another process
        self.phase: Phase = "start"
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
