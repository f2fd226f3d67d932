"""The parent's side of a worker: its process and its channel."""

import contextlib
import os
import select
import signal
import socket
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from ..device import processes
from ..device.gpus import Gpu
from ..records.case import CaseRecord
from ..records.row import Phase
from .messages import Due, read_message
from .spawn import CHUNK_BYTES, DYING_S, Gone, Source

FILES = "files"  # folder for files of measurements, next to the log
IDLE: Phase = "plan"  # phase of a worker between two cases
STACK_S = 0.05  # time for a late worker to print its stacks
HEAD, TAIL = 1000, 3000  # bytes of a worker's output in a row, from its beginning and its end
MOST_LOG_BYTES = 2**26  # limit of the log; if cases print more, the part for their rows is kept
MOST_BYTES = 2**27  # limit of a message; a row with all of its samples has some 10 MB
SEND_S = 10.0  # for a worker to accept a message, which it reads as soon as it has answered
NEWEST_MARKS: dict[Path, int] = {}  # by log: its size at the last message to any of the workers that share it
NOT_DUE = "the worker sent an invalid message and was killed"


class WorkerProcess:
    """A worker on ``gpus``, or on the CPU if empty. Its first message is ``environment``. Raises Gone.

    A worker that ``measures`` warms up before that message, and calibrates its instruments for cases like ``like``.
    ``place`` is where it meets the other ranks of its cases, its own rank, and their number; None: there are no others.
    """

    def __init__(
        self,
        source: Source,
        log_path: Path,
        gpus: Sequence[Gpu],
        *,
        measures: bool,
        like: CaseRecord | None = None,
        place: tuple[str, int, int] | None = None,
    ) -> None:
        self.gpus = gpus
        self.cases = 0  # cases that it has run
        self.user_files: set[str] = set()  # the user's files that they ran
        self.timed: set[str] = set()  # keys of the cases that it can compare
        self.due = Due()  # messages that it may send now
        self.deadline = 0.0  # end of the phase, on the monotonic clock
        self.paused = False
        self.dying = False  # it was killed or has closed its channel, and its memory is still in use
        self.ended = ""  # how it ended or got stuck, as a sentence
        self.stuck = False  # it was killed and has not ended
        self._source, self._log_path = source, log_path
        self._channel, theirs = socket.socketpair()
        weakref.finalize(self, self._channel.close)  # at the end of a run its source ends it, without ``end``
        self._received = bytearray()  # the beginning of an incomplete message
        with theirs, open(log_path, "ab") as log:
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
            self.pid = source.fork(theirs.fileno(), log.fileno(), environment)
        # Readable once the process has ended; None if the system has no pidfds
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        begin = ("cuda" if gpus else "cpu") if measures else ""
        files = str(log_path.parent.absolute() / FILES)
        self.send({"begin": begin, "files": files, "like": like and like.to_record(), "place": place})

    @property
    def watched(self) -> list[int]:
        """Descriptors that become readable when the worker sends a message or ends."""
        return self.descriptors()

    def descriptors(self) -> list[int]:
        """Descriptors of this process alone: those in ``watched``, without those of other ranks."""
        if self.ended:  # they are closed, and their numbers may be in use for other files
            return []
        descriptors = [self._channel.fileno()] + ([] if self._pidfd is None else [self._pidfd])
        return descriptors[-1:] if self.dying else descriptors

    def ran_code_beside(self, case: CaseRecord) -> bool:
        """Return whether an earlier case has run a file of the user's that ``case`` does not run."""
        return bool(self.user_files - case.user_files)

    def has_ended(self) -> bool:
        """Return whether the process has ended and all its messages are read."""
        readable = _readable(self.descriptors())
        return bool(self.ended) or (self._pidfd in readable and self._channel.fileno() not in readable)

    @property
    def alive(self) -> bool:
        """Whether the process runs; False if unknown."""
        return not self.ended and self._pidfd is not None and not _readable([self._pidfd])

    @property
    def has_message(self) -> bool:
        """Whether a message can be received. A spare worker that is ready has sent one."""
        return bool(_readable([self._channel.fileno()]))

    def pause(self, paused: bool) -> None:
        """Stop the process and its group, or let them continue."""
        if paused != self.paused:
            self.paused = paused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.due.phase

    def enter(self, phase: Phase, limit_s: float) -> None:
        """Set the phase, which begins now."""
        self.due.phase, self.deadline = phase, time.monotonic() + limit_s

    def ask(self, message: object, phase: Phase, limit_s: float, case: CaseRecord | None = None) -> None:
        """Send a message that the worker will answer, about ``case`` if given. Raises Gone."""
        self.due = Due(phase, case, fresh=not self.cases, timed=self.timed)
        self.enter(phase, limit_s)
        self.send(message)

    def send(self, message: object) -> None:
        """Send ``message``. Raises Gone, also if the worker does not take it within ``SEND_S``."""
        self.cut_log()  # what lies before a mark is kept
        self._mark = NEWEST_MARKS[self._log_path] = self._log_size()
        if self._pidfd is not None and not self.alive:  # a process that it has forked may hold the channel open
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

        This does not wait, since a worker may be killed in the middle of a message while a process that it has forked
        keeps the channel open. A worker that has closed its channel is killed.
        """
        self._channel.setblocking(False)
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
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
            if searched > MOST_BYTES:
                raise self._killed(NOT_DUE)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            return read_message(line, self.due)
        except ValueError:
            raise self._killed(NOT_DUE) from None

    def _killed(self, reason: str) -> Gone:
        """Kill it without waiting. Return an error with the message ``reason``."""
        with contextlib.suppress(Gone):
            self.kill()
        return Gone(reason)

    def print_stacks(self) -> str:
        """Make it print its stacks to its log, even in an endless loop in C. Return where it hangs, "" if unknown."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        time.sleep(STACK_S)
        return ""

    def kill(self) -> None:
        """Kill it and its descendants without waiting for its end. Raises Gone if it has ended."""
        if self.ended or self._pidfd is None:  # without a pidfd, its end would go unnoticed
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
                self.stuck = code is None
                how = "was killed and has not ended" if code is None else processes.ending(code)
                self.ended = f"the worker {how}"
            except Gone as gone:
                self.ended = str(gone)
            if self._pidfd is not None:
                os.close(self._pidfd)
        return self.ended

    def printed(self) -> str:
        """Return its output since the last message to it; only the beginning and the end of a long output."""
        return self._since(self._mark).decode(errors="replace")

    def _since(self, mark: int) -> bytes:
        try:
            with open(self._log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END) - mark
                log.seek(mark)
                text = log.read(HEAD)
                if size > HEAD + TAIL:
                    text += b"\n[...]\n"
                    log.seek(-TAIL, os.SEEK_END)
                return text + log.read(TAIL)
        except FileNotFoundError:  # the user has removed it
            return b""

    def cut_log(self) -> None:
        """Cut the output since the last message to any worker out of a log that is too long, but for what rows keep.

        What ``printed`` returns of each worker stays the same, since no mark is in the part that is cut. The log is
        open for appending, so that the workers go on at its new end.
        """
        size = self._log_size()
        mark = NEWEST_MARKS.get(self._log_path, size)
        if size > MOST_LOG_BYTES and size - mark > 2 * (HEAD + TAIL):
            text = self._since(mark)
            with contextlib.suppress(OSError), open(self._log_path, "ab") as log:
                log.truncate(mark)
                log.write(text)

    def _log_size(self) -> int:
        try:
            return self._log_path.stat().st_size
        except FileNotFoundError:
            return 0


def _readable(descriptors: Sequence[int]) -> list[int]:
    return select.select(descriptors, [], [], 0)[0]
