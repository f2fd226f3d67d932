"""Start of workers: forked by a zygote, or as new Python processes."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..device import processes

DYING_S = 60.0  # the driver may need long to clean up a process with the memory of a whole GPU
REAP_S = 90.0  # longer than the zygote waits for the end of a worker and its descendants
CHUNK_BYTES = 2**16
MARK = "KERNEL_RUNNER_WORKERS"  # a variable that descendants inherit, so that they can be found
ORPHANED = "the zygote, which forks workers, was killed, and its workers with it"


class Gone(Exception):
    """Raised if a child process has ended or did not start; the message says how."""


class Zygote:
    """Forks workers, from a process that has imported torch (``runner.execute.zygote``).

    The process starts at once, so that it imports torch while the command line is read. ``environment`` is added to its
    variables. If it is killed, it is not started again.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._log_path: Path | None = None  # None once the process has it
        self._serves = False  # it has answered a request
        self._mark = uuid.uuid4().hex
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # numpy must start no thread before a fork
            added = {"OPENBLAS_NUM_THREADS": "1", MARK: self._mark, **(environment or {})}
            command = ["kernel_runner.execute.zygote", str(theirs.fileno()), str(os.getpid())]
            self.process = _start(command, [theirs.fileno()], subprocess.DEVNULL, added)  # until it has the log

    def begin(self, log_path: Path, preload: Sequence[str], keep: Sequence[int], limit_s: float) -> None:
        """Set what the process imports before its first fork, its log, and descriptors that workers hold open."""
        self._log_path, self._preload, self._keep, self._limit_s = log_path, preload, keep, limit_s

    def fork(self, channel: int, log: int, environment: Mapping[str, str]) -> int:
        """Return the process id of a new worker. Raises Gone."""
        if self._log_path:
            begin = json.dumps({"preload": [*self._preload]}).encode()
            with open(self._log_path, "ab") as log_file, contextlib.suppress(OSError):  # it has ended: _ask raises Gone
                socket.send_fds(self._control, [begin], [log_file.fileno(), *self._keep])
            self._log_path = None
        answer = self._ask({"fork": dict(environment)}, self._limit_s, [channel, log])
        if "error" in answer:
            raise Gone(f"the zygote could not fork a worker: {answer['error']}")
        return int(answer["pid"])

    def reap(self, pid: int, limit_s: float) -> int | None:
        """Kill worker ``pid`` and its descendants. Return its exit code, or None after ``limit_s``. Raises Gone."""
        code: int | None = self._ask({"reap": pid, "limit_s": limit_s}, REAP_S)["code"]
        return code

    def close(self) -> None:
        """End the process and all its workers. While it imports torch, it has no workers, and must be killed."""
        self._control.close()
        try:
            self.process.wait(5 if self._serves else 0)
        except subprocess.TimeoutExpired:
            processes.kill_tree(self.process.pid)
            self.process.wait()
        if self._serves and self.process.returncode:  # it could not kill what cases have started
            processes.kill_marked(f"{MARK}={self._mark}")

    def _ask(self, request: Mapping[str, object], limit_s: float, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Return the answer to ``request``. Without one within ``limit_s``, end the process. Raises Gone."""
        try:
            self._control.settimeout(limit_s)
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer: dict[str, Any] = json.loads(self._control.recv(CHUNK_BYTES))
            self._serves = True
        except (OSError, ValueError):
            self.close()  # a late answer would be taken for the answer to another request
            raise Gone(ORPHANED) from None
        return answer


class Spawner:
    """Starts each worker as a new Python process. It replaces a Zygote, for example on macOS."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._keep: Sequence[int] = ()
        self._processes: dict[int, tuple[subprocess.Popen[bytes], str]] = {}  # with their marks

    def begin(self, log_path: Path, preload: Sequence[str], keep: Sequence[int], limit_s: float) -> None:
        """Set the descriptors ``keep`` that workers hold open."""
        self._keep = keep

    def fork(self, channel: int, log: int, environment: Mapping[str, str]) -> int:
        """Return the process id of a new worker."""
        mark = uuid.uuid4().hex
        added = {MARK: mark, **self._environment, **environment}
        process = _start(["kernel_runner.worker.serve", str(channel)], [channel, *self._keep], log, added)
        self._processes[process.pid] = process, mark
        return process.pid

    def reap(self, pid: int, limit_s: float) -> int:
        """Kill worker ``pid`` and its descendants. Return its exit code, without a time limit."""
        process, mark = self._processes.pop(pid)
        processes.kill_group(process)
        processes.kill_marked(f"{MARK}={mark}")
        return process.returncode

    def close(self) -> None:
        """End all workers."""
        for pid in [*self._processes]:
            self.reap(pid, DYING_S)


Source = Zygote | Spawner  # starts workers


def _start(command: Sequence[str], keep: Sequence[int], log: int, added: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a Python module that inherits the descriptors ``keep``; ``added`` are variables of its environment.

    The process is unbuffered, so that the last output of a crash is not lost.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *command],
        pass_fds=keep,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=processes.environment() | {"PYTHONUNBUFFERED": "1"} | added,
        start_new_session=True,
    )
