"""The parent's ends: of the process that forks workers, and of a worker."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from runner.device import processes
from runner.device.gpus import Gpu
from runner.experiment.case import CaseRecord
from runner.experiment.results import Phase

STACK_S = 0.05  # at most, that a late worker has to print where it is
LOOK_S = 0.005
FILES = "files"  # beside the log: a folder for what measurements keep
NO_MORE: Mapping[str, str] = MappingProxyType({})  # than the environment that this process has
TAIL, HEAD = 3000, 1000  # bytes of a worker's output that a row keeps, from the end and from the beginning
DYING_S = 60.0  # that the driver may take to clear up after a process with the memory of a whole GPU
REAP_S = 90.0  # more than the zygote itself waits for the end of a worker and of what it has started
CHUNK_BYTES = 2**16
MOST_BYTES = 2**26  # of a message: a row with every sample that can be asked for has a hundredth of it
ORPHANED = "the process that forks workers has been killed, and its workers with it"
STUCK = "the worker was killed and has not ended"


class Gone(Exception):
    """A process of ours has ended, or did not begin; the message says how."""


class Stuck(Gone):
    """A process of ours was killed and has not ended: it sits in a driver, and what it holds is not free."""


class Forker:
    """A process that imports torch and then forks workers (``runner.execute.zygote``).

    It starts before anybody knows what for, so that torch is imported while the command line is read. What it prints
    before it is given a log is kept here.
    """

    def __init__(self, environment: Mapping[str, str] = NO_MORE) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # closed by begin
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runner.execute.zygote", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                # No thread of numpy's before a fork.
                env=_environment() | {"OPENBLAS_NUM_THREADS": "1"} | dict(environment),
                start_new_session=True,
            )

    def begin(self, log_path: Path, preload: Sequence[str], keep: Sequence[int], limit_s: float) -> None:
        """Wait until it can fork workers, which print to ``log_path`` and hold ``keep`` open. Raises Gone."""
        self.control.settimeout(limit_s)
        with open(log_path, "ab") as log:
            try:
                socket.send_fds(self.control, [json.dumps({"preload": [*preload]}).encode()], [log.fileno(), *keep])
                ready = self.control.recv(2**16)
            except TimeoutError:
                raise Gone(f"it did not start within {limit_s:g} s (launcher.start_limit_s)") from None
            except OSError:
                ready = b""
            self._printed.seek(0)
            shutil.copyfileobj(self._printed, log)
            self._printed.close()
        if not ready:
            raise Gone(f"it ended with code {self.process.wait()} while importing torch")

    def close(self) -> None:
        """End it and all workers."""
        self.control.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            processes.kill_tree(self.process.pid)
            self.process.wait()


class _Source:
    """Where workers come from.

    ``preload`` are modules that are imported for all of them, where one process can do that; ``keep`` are descriptors
    that they hold open; ``environment`` is theirs from the beginning; ``early`` is a process that has been started.
    """

    def __init__(
        self,
        log_path: Path,
        limit_s: float,
        preload: Sequence[str] = (),
        keep: Sequence[int] = (),
        environment: Mapping[str, str] = NO_MORE,
        early: Forker | None = None,
    ) -> None:
        self._log_path, self._limit_s = log_path, limit_s
        self._preload, self._keep, self._environment, self._early = preload, keep, environment, early


class Zygote(_Source):
    """Workers forked by a Forker, which starts when the first one is wanted. Once it has been killed there are none."""

    _forker: Forker | None = None

    def _control(self) -> socket.socket:
        """The socket to ask it by. Raises Gone if it does not start, or has ended."""
        if self._forker is None:
            self._forker = self._early or Forker(self._environment)
            self._forker.begin(self._log_path, self._preload, self._keep, self._limit_s)
        if self._forker.process.poll() is not None:
            raise Gone(ORPHANED)
        return self._forker.control

    @property
    def pid(self) -> int | None:
        """The Forker's process id; None before it has started."""
        return self._forker.process.pid if self._forker else None

    def fork(self, channel: int, log: int, environment: Mapping[str, str]) -> int:
        """The pid of a new worker. Raises Gone."""
        answer = self._ask({"fork": {"environment": dict(environment)}}, self._limit_s, [channel, log])
        return int(answer["pid"])

    def kill(self, pid: int) -> None:
        """Kill worker ``pid`` with all it has started, and wait for none of them. Raises Gone."""
        self._ask({"kill": pid}, REAP_S)

    def reap(self, pid: int, limit_s: float) -> int:
        """Kill worker ``pid`` with all it has started; its exit code, if it has ended by ``limit_s``. Raises Gone."""
        code: int | None = self._ask({"reap": pid, "limit_s": limit_s}, REAP_S)["code"]
        if code is None:
            raise Stuck(STUCK)
        return code

    def _ask(self, request: Mapping[str, object], limit_s: float, give: Sequence[int] = ()) -> dict[str, Any]:
        """What it answers. If it does not, it is ended, and all workers with it. Raises Gone."""
        control = self._control()
        control.settimeout(limit_s)
        try:
            socket.send_fds(control, [json.dumps(request).encode()], give)
            answer: dict[str, Any] = json.loads(control.recv(2**16))
        except TimeoutError:
            self.close()  # its answer may come yet, and would be taken for that to another question
            raise Stuck(STUCK) from None
        except (OSError, ValueError):
            self.close()
            raise Gone(ORPHANED) from None
        if "error" in answer:
            raise Gone(f"the process that forks workers refuses: {answer['error']}")
        return answer

    def close(self) -> None:
        """End it and all workers."""
        if self._forker is not None:
            self._forker.close()


class Spawner(_Source):
    """In place of a Zygote where there is no Linux: every worker imports torch for itself, in a second or more."""

    @cached_property
    def _processes(self) -> dict[int, subprocess.Popen[bytes]]:
        return {}

    def fork(self, channel: int, log: int, environment: Mapping[str, str]) -> int:
        """The pid of a new worker."""
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.worker.serve", str(channel)],
            pass_fds=[channel, *self._keep],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment() | dict(self._environment) | dict(environment),
            start_new_session=True,
        )
        self._processes[process.pid] = process
        return process.pid

    def kill(self, pid: int) -> None:
        """Kill worker ``pid`` and its group, and wait for none of them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def reap(self, pid: int, limit_s: float) -> int:
        """Kill worker ``pid`` and its group; its exit code, however long that takes."""
        process = self._processes.pop(pid)
        processes.kill_group(process)
        return process.returncode

    def close(self) -> None:
        """End all workers."""
        for pid in [*self._processes]:
            self.reap(pid, DYING_S)


def _environment() -> dict[str, str]:
    """Return that of a process in which cases run: unbuffered, so that the last words of a crash are kept."""
    return processes.environment() | {"PYTHONUNBUFFERED": "1"}


class WorkerProcess:
    """A worker on ``gpus``, (): the CPU, forked at once; its first message is ``environment``, when it is ready.

    Unless it ``measures``, that is at once. If it is the first to, it finds out before what cases ``like`` one want to
    know of the machine. Raises Gone.
    """

    def __init__(
        self,
        zygote: Zygote | Spawner,
        log_path: Path,
        gpus: Sequence[Gpu],
        *,
        measures: bool,
        like: CaseRecord | None = None,
    ) -> None:
        self.replica = 0  # whose cases it takes: the next ones are to run in another process
        self.cases = 0  # that it has run
        self.phase: Phase = "start"
        self.deadline = 0.0  # by the monotonic clock
        self.paused = False
        self.dying = False  # it was killed, or has closed its channel; what it held is not free until it has ended
        self.stuck = False  # it was killed, and has not ended
        self._zygote, self._log_path = zygote, log_path
        ours, theirs = socket.socketpair()
        with theirs, open(log_path, "ab") as log:
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
            self.pid = zygote.fork(theirs.fileno(), log.fileno(), environment)
        self._channel, self._heard = ours, bytearray()  # the beginning of a message whose end has not come yet
        # Readable when the process has ended, whoever holds its channel open; Linux alone has it.
        self._pidfd = self._open() if hasattr(os, "pidfd_open") else None
        self._how = ""  # it ended
        self._mark = self.log_size()
        device = "cuda" if gpus else "cpu"
        files = log_path.parent.absolute() / FILES
        example = like.to_record() if like else None
        self.send({"begin": device if measures else "", "files": str(files), "like": example})

    def _open(self) -> int:
        """Raises Gone: it has ended already, and what forked it too, which would else have kept its pid for it."""
        try:
            return os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._channel.close()
            raise Gone(ORPHANED) from None

    def fileno(self) -> int:
        """Readable when there is a message."""
        return self._channel.fileno()

    @property
    def watched(self) -> list[int]:
        """Descriptors of which one is readable when it has something to say, or has ended."""
        known = [self.fileno()] if self._pidfd is None else [self.fileno(), self._pidfd]
        return known[-1:] if self.dying else known

    def has_ended(self) -> bool:
        """Its process, that is, and no message that it has sent before is left to read."""
        readable, _, _ = select.select(self.watched, [], [], 0)
        return self._pidfd in readable and self.fileno() not in readable

    @property
    def ended(self) -> bool:
        """It has been waited for, whether or not that helped."""
        return bool(self._how)

    @property
    def alive(self) -> bool:
        """It has not ended, and is not about to; False where the system does not tell."""
        return self._pidfd is not None and not select.select([self._pidfd], [], [], 0)[0]

    @property
    def answered(self) -> bool:
        """There is a message to receive."""
        return bool(select.select([self], [], [], 0)[0])

    def pause(self, wanted: bool) -> None:
        """Let it stand still, or go on."""
        if wanted == self.paused:
            return
        self.paused = wanted
        for send in (os.kill, os.killpg):  # it has no group of its own in its first moments
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGSTOP if wanted else signal.SIGCONT)

    def enter(self, phase: Phase, limit_s: float) -> None:
        """``phase`` begins now."""
        self.phase, self.deadline = phase, time.monotonic() + limit_s

    def send(self, message: object) -> None:
        """Raises Gone."""
        self._mark = self.log_size()
        if self._pidfd is not None and not self.alive:  # a process that it forked may hold its end of the channel
            raise Gone(self.end())
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise Gone(self.end()) from None

    def receive(self) -> dict[str, Any] | None:
        """The next message, if all of it is here. Raises Gone if there never will be, or it is none of ours.

        It never waits: of a worker that was stopped or killed amid a message the rest does not come, and whoever else
        holds its end, a process that a case has forked, keeps the channel open. One that has closed it is ``dying``.
        """
        try:
            while (end := self._heard.find(b"\n")) < 0:
                heard = self._channel.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
                if not heard:
                    self.kill()
                    return None
                self._heard += heard
                if len(self._heard) > MOST_BYTES:
                    raise ValueError
            message = json.loads(self._heard[:end])
            del self._heard[: end + 1]
            if not isinstance(message, dict):
                raise TypeError
        except BlockingIOError:
            return None
        except OSError:
            self.kill()
            return None
        except (ValueError, TypeError, RecursionError):
            raise self.refused() from None
        return message

    def refused(self) -> Gone:
        """It is ended, for a case has written to its channel, a descriptor that was not the case's own."""
        self.end()
        return Gone("the worker sent what is no message, and was killed")

    def where_is_it(self) -> None:
        """Let it print the stacks of its threads to its log, even from within an endless loop in C."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        before, began = self.log_size(), time.monotonic()
        printed = before
        while time.monotonic() - began < STACK_S:
            time.sleep(LOOK_S)
            last, printed = printed, self.log_size()
            if last == printed > before:  # it has begun, and is done
                break

    def kill(self) -> None:
        """Kill it and all it has started: it is ``dying``, and to be waited for by ``watched``. Raises Gone."""
        if self._how or self._pidfd is None:  # it has ended; or nothing would tell of its end
            raise Gone(self.end())
        if not self.dying:
            self.dying = True
            self.deadline = time.monotonic() + DYING_S
            with contextlib.suppress(Gone):  # then it dies with what forked it
                self._zygote.kill(self.pid)

    def end(self, limit_s: float = DYING_S) -> str:
        """Kill it and all it has started, and wait for that at most so long; how it ended, in words."""
        if not self._how:
            self._channel.close()
            try:
                code = self._zygote.reap(self.pid, limit_s)
                self._how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
                self._how = f"the worker {self._how}"
            except Gone as gone:
                self._how, self.stuck = str(gone), isinstance(gone, Stuck)
            if self._pidfd is not None:
                os.close(self._pidfd)
        return self._how

    def log_size(self) -> int:
        """Bytes that workers have printed into its log so far; 0 if somebody has removed it."""
        try:
            return self._log_path.stat().st_size
        except FileNotFoundError:
            return 0

    def printed(self) -> str:
        """What it has printed since the last message to it: the beginning and the end; "" if that has been removed."""
        try:
            with open(self._log_path, "rb") as log:
                return self._ends(log).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _ends(self, log: BinaryIO) -> bytes:
        size = log.seek(0, os.SEEK_END) - self._mark
        if size < 0:  # another file has taken its place
            return b""
        log.seek(self._mark)
        if size <= HEAD + TAIL:
            return log.read(size)
        text = log.read(HEAD) + b"\n[...]\n"  # of what may be gigabytes
        log.seek(-TAIL, os.SEEK_END)
        return text + log.read(TAIL)
