"""The parent's side of its child processes: what starts workers, and a worker with its channel."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from runner.device import processes
from runner.device.gpus import Gpu
from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Phase, Row

FILES = "files"  # beside the log: the folder for files that measurements keep
IDLE: Phase = "plan"  # the phase of a worker between two cases
STACK_S = 0.05  # time for a late worker to print its stacks
HEAD, TAIL = 1000, 3000  # bytes of a worker's output that a row keeps, from the beginning and from the end
DYING_S = 60.0  # the driver may take long to clean up after a process with the memory of a whole GPU
REAP_S = 90.0  # longer than the zygote itself waits for the end of a worker and its descendants
CHUNK_BYTES = 2**16
MOST_BYTES = 2**27  # of a message: a row with all of its samples has some 10 MB
MESSAGES = ({"environment"}, {"phase"}, {"full"}, {"rounds"}, {"prepared"}, {"row", "spoiled", "calibrations"})
PRECOMPILED = {"precompile_s"}  # columns that compiling ahead may give
MOST_PHASES = (
    12  # messages about phases of a case, beside its measurements: twice inputs, build, check, build, check, measure
)
SEND_S = 10.0  # for a worker to take a message: it reads as soon as it has answered
NOT_DUE = "the worker sent an invalid message and was killed"
ORPHANED = "the zygote, which forks workers, was killed, and its workers with it"


class Gone(Exception):
    """A child process has ended or did not start; the message says how."""


class Zygote:
    """Forks workers, from a process that has imported torch (``runner.execute.zygote``).

    The process starts at once, so that it imports torch while the command line is read. ``environment`` is added to its
    variables. If it is killed it is not started again.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._log_path: Path | None = None  # None once the process has it
        self._serves = False  # it has answered a request
        self._mark = _mark()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runner.execute.zygote", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # until it has the log
                stderr=subprocess.DEVNULL,
                # numpy must start no thread before a fork
                env=_environment() | {"OPENBLAS_NUM_THREADS": "1"} | self._mark | dict(environment or {}),
                start_new_session=True,
            )

    def begin(self, log_path: Path, preload: Sequence[str], keep: Sequence[int], limit_s: float) -> None:
        """Set what the process imports before its first fork, its log, and descriptors that workers hold open."""
        self._log_path, self._preload, self._keep, self._limit_s = log_path, preload, keep, limit_s

    def fork(self, channel: int, log: int, environment: Mapping[str, str]) -> int:
        """Return the process id of a new worker. Raises Gone."""
        if self._log_path:
            begin = json.dumps({"preload": [*self._preload]}).encode()
            with open(self._log_path, "ab") as own, contextlib.suppress(OSError):  # it has ended: _ask raises Gone
                socket.send_fds(self._control, [begin], [own.fileno(), *self._keep])
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
        """End the process and all its workers. While it imports it has none, and does not see that it should end."""
        self._control.close()
        try:
            self.process.wait(5 if self._serves else 0)
        except subprocess.TimeoutExpired:
            processes.kill_tree(self.process.pid)
            self.process.wait()
        if self._serves and self.process.returncode:  # it could not kill what cases have started
            _kill_marked(self._mark)

    def _ask(self, request: Mapping[str, object], limit_s: float, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Return the answer to ``request``. Without one within ``limit_s``, end the process. Raises Gone."""
        try:
            self._control.settimeout(limit_s)
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer: dict[str, Any] = json.loads(self._control.recv(CHUNK_BYTES))
            self._serves = True
        except (OSError, ValueError):
            self.close()  # a late answer would be taken for that to another request
            raise Gone(ORPHANED) from None
        return answer


class Spawner:
    """Starts each worker as a new Python, which imports torch itself. It stands in for a Zygote, as on macOS."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._keep: Sequence[int] = ()
        self._processes: dict[int, tuple[subprocess.Popen[bytes], dict[str, str]]] = {}

    def begin(self, log_path: Path, preload: Sequence[str], keep: Sequence[int], limit_s: float) -> None:
        """Set the descriptors ``keep`` that workers hold open."""
        self._keep = keep

    def fork(self, channel: int, log: int, environment: Mapping[str, str]) -> int:
        """Return the process id of a new worker."""
        mark = _mark()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.worker.serve", str(channel)],
            pass_fds=[channel, *self._keep],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment() | mark | dict(self._environment) | dict(environment),
            start_new_session=True,
        )
        self._processes[process.pid] = process, mark
        return process.pid

    def reap(self, pid: int, limit_s: float) -> int:
        """Kill worker ``pid`` and what it has started. Return its exit code, however long that takes."""
        process, mark = self._processes.pop(pid)
        processes.kill_group(process)
        _kill_marked(mark)
        return process.returncode

    def close(self) -> None:
        """End all workers."""
        for pid in [*self._processes]:
            self.reap(pid, DYING_S)


def _mark() -> dict[str, str]:
    """Return a variable that is passed on from process to process, and by which the last of them can be found."""
    return {"KERNEL_RUNNER_WORKERS": uuid.uuid4().hex}


def _kill_marked(mark: Mapping[str, str]) -> None:
    for name, value in mark.items():
        processes.kill_marked(f"{name}={value}")


def _environment() -> dict[str, str]:
    """Return the environment of a process that runs cases. Unbuffered, the last output of a crash is not lost.

    A user's kernel may import what lies in the current folder, but ``runner`` is always this package.
    """
    return processes.environment(os.curdir) | {"PYTHONUNBUFFERED": "1"}


@dataclass
class Due:
    """What a worker may say now: it is in ``phase``, and runs ``case`` if there is one."""

    phase: Phase = "start"
    case: CaseRecord | None = None
    fresh: bool = True  # the worker has run no case before
    timed: Collection[str] = ()  # keys of the cases that it can compare
    entered: int = 0  # messages about phases of ``case`` so far


def read(line: bytes, due: Due) -> dict[str, Any]:
    """Return the message in ``line``: a row, or a comparison, as an object, and all else as JSON.

    A case can write to the channel of its worker. So a message counts only if it is due from that case in that phase,
    and holds what it should. Raises ValueError if not.
    """
    try:
        message = orjson.loads(line)
        message = _due(message, due) if {*message} in MESSAGES else None
    except (AttributeError, KeyError, TypeError) as error:  # a part is missing, or of another type
        raise ValueError(str(error)) from None
    if message is None:
        raise ValueError("not due")
    return message


def _due(message: Any, due: Due) -> dict[str, Any] | None:
    """Return ``message`` as ``read`` does, or None if it is not due."""
    case = due.case
    match due.phase, message:
        case "start", {"environment": dict()}:
            return {**message}
        case "build", {"prepared": dict(columns)} if case is None:
            sound = columns.keys() <= PRECOMPILED and all(isinstance(value, float) for value in columns.values())
            return {**message} if sound else None
        case "compare", {"rounds": dict(record)}:
            rounds = Comparison.from_record(record)
            return {"rounds": rounds} if {*rounds.batches_us, *rounds.instruments} <= {*due.timed} else None
        case ("compare", {"phase": "compare"}) | (
            ("inputs" | "build" | "check" | "measure"),
            {"phase": ("inputs" | "build" | "check" | "measure")},
        ):
            due.entered += 1  # each gives the case a new time limit
            return {**message} if due.entered <= MOST_PHASES + 2 * len(case.measures if case else ()) else None
        case "inputs", {"full": str()} if not due.fresh:
            return {**message}
        case (("inputs" | "build" | "check" | "measure"), {"row": dict(record), "spoiled": bool()}) if case:
            row, numbers = Row.from_record(record, case), message["calibrations"].values()
            if all(isinstance(number, int | float) for number in numbers):
                return {**message, "row": replace(row, fingerprint={})}
    return None


class WorkerProcess:
    """A worker on ``gpus``, or on the CPU if there are none. Its first message is ``environment``. Raises Gone.

    A worker that ``measures`` warms up before that message; if ``like`` is a case, it also calibrates instruments for
    cases like that one.
    """

    def __init__(
        self,
        source: Zygote | Spawner,
        log_path: Path,
        gpus: Sequence[Gpu],
        *,
        measures: bool,
        like: CaseRecord | None = None,
    ) -> None:
        self.gpus = gpus
        self.cases = 0  # number of cases that it has run
        self.timed: set[str] = set()  # keys of the cases that it can compare
        self.due = Due()  # what it may say now
        self.deadline = 0.0  # of the phase, on the monotonic clock
        self.paused = False
        self.dying = False  # it was killed or has closed its channel; its memory is free once it has ended
        self.ended = ""  # how it ended, as a sentence; also if it is stuck
        self.stuck = False  # it was killed and has not ended
        self._source, self._log_path = source, log_path
        self._channel, theirs = socket.socketpair()
        self._received = bytearray()  # the beginning of an incomplete message
        with theirs, open(log_path, "ab") as log:
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
            self.pid = source.fork(theirs.fileno(), log.fileno(), environment)
        # Readable once the process has ended; None where the system has no such thing
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._mark = self._log_size()
        begin = ("cuda" if gpus else "cpu") if measures else ""
        files = str(log_path.parent.absolute() / FILES)
        self.send({"begin": begin, "files": files, "like": like and like.to_record()})

    @property
    def watched(self) -> list[int]:
        """Descriptors to wait for: one becomes readable when the worker sends a message or ends."""
        known = [self._channel.fileno()] + ([] if self._pidfd is None else [self._pidfd])
        return known[-1:] if self.dying else known

    def has_ended(self) -> bool:
        """Whether the process has ended and all its messages are read."""
        readable = _readable(self.watched)
        return self._pidfd in readable and self._channel.fileno() not in readable

    @property
    def alive(self) -> bool:
        """Whether the process runs; False where the system cannot tell."""
        return self._pidfd is not None and not _readable([self._pidfd])

    @property
    def has_message(self) -> bool:
        """Whether a message waits to be received: a spare worker that is ready has one."""
        return bool(_readable([self._channel.fileno()]))

    def pause(self, wanted: bool) -> None:
        """Stop the process and its group, or let them continue."""
        if wanted != self.paused:
            self.paused = wanted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGSTOP if wanted else signal.SIGCONT)

    @property
    def phase(self) -> Phase:
        """What it does now."""
        return self.due.phase

    def enter(self, phase: Phase, limit_s: float) -> None:
        """Note that ``phase`` begins now."""
        self.due.phase, self.deadline = phase, time.monotonic() + limit_s

    def ask(self, message: object, phase: Phase, limit_s: float, case: CaseRecord | None = None) -> None:
        """Send a message that is answered: about ``case``, if there is one. Raises Gone."""
        self.due = Due(phase, case, fresh=not self.cases, timed=self.timed)
        self.enter(phase, limit_s)
        self.send(message)

    def send(self, message: object) -> None:
        """Send ``message``. Raises Gone, also if the worker does not take it within ``SEND_S``."""
        self._mark = self._log_size()
        if self._pidfd is not None and not self.alive:  # a process that it forked may hold its end of the channel
            raise Gone(self.end())
        try:
            self._channel.settimeout(SEND_S)
            self._channel.sendall(orjson.dumps(message) + b"\n")
        except TimeoutError:
            raise self._killed(f"the worker read no message for {SEND_S:g} s and was killed") from None
        except OSError:
            raise Gone(self.end()) from None

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None if it is not complete yet. Raises Gone if it is not due.

        This never waits: a worker may be killed in the middle of a message while a process that it has forked keeps
        the channel open. A worker that has closed its channel is killed.
        """
        self._channel.setblocking(False)
        looked = 0
        while (end := self._received.find(b"\n", looked)) < 0:
            looked = len(self._received)
            try:
                data = self._channel.recv(CHUNK_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                self.kill()
                return None
            self._received += data
            if looked > MOST_BYTES:
                raise self._killed(NOT_DUE)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            return read(line, self.due)
        except ValueError:
            raise self._killed(NOT_DUE) from None

    def _killed(self, why: str) -> Gone:
        """Kill it without waiting. Return the error that says ``why``."""
        with contextlib.suppress(Gone):
            self.kill()
        return Gone(why)

    def print_stacks(self) -> None:
        """Make it print the stacks of its threads to its log, which works within an endless loop in C too."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        time.sleep(STACK_S)

    def kill(self) -> None:
        """Kill it and its descendants without waiting. ``watched`` tells when it has ended. Raises Gone if it has."""
        if self.ended or self._pidfd is None:  # without a pidfd nothing would tell
            raise Gone(self.end())
        if not self.dying:
            self.dying = True
            self.deadline = time.monotonic() + DYING_S
            if self.alive:
                processes.kill_tree(self.pid)

    def end(self, limit_s: float = DYING_S) -> str:
        """Kill it and its descendants and wait up to ``limit_s``. Return how it ended, as a sentence."""
        if not self.ended:
            self._channel.close()
            try:
                code = self._source.reap(self.pid, limit_s)
                self.stuck, self.ended = code is None, _outcome(code)
            except Gone as gone:
                self.ended = str(gone)
            if self._pidfd is not None:
                os.close(self._pidfd)
        return self.ended

    def printed(self) -> str:
        """Return what it has printed since the last message to it; from a long output the beginning and the end."""
        try:
            with open(self._log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END) - self._mark
                log.seek(self._mark)
                if size > HEAD + TAIL:
                    text = log.read(HEAD) + b"\n[...]\n"
                    log.seek(-TAIL, os.SEEK_END)
                else:
                    text = b""
                return (text + log.read(TAIL + HEAD)).decode(errors="replace")
        except FileNotFoundError:  # the user has removed it
            return ""

    def _log_size(self) -> int:
        try:
            return self._log_path.stat().st_size
        except FileNotFoundError:
            return 0


def _readable(descriptors: Sequence[int]) -> list[int]:
    return select.select(descriptors, [], [], 0)[0]


def _outcome(code: int | None) -> str:
    if code is None:
        return "the worker was killed and has not ended"
    return f"the worker {f'was killed by {signal.Signals(-code).name}' if code < 0 else f'exited with code {code}'}"
