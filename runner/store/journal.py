"""The journal: one JSON record a line, appended as it happens, by the parent alone. The only writer of results.

A record is written with one ``write`` to a file opened for appending, its newline at its end. Should a kill or a full
disk tear the last one, the next begins with a newline: the torn line ends there, and the record is whole. Reading skips
torn lines. What was written survives the death of this process at once; a thread sees to it that the disk has it a
second later, which nobody waits for until the end.

    {"record": "session"}    a process begins to write: the run's first, or one that resumes it; and by which rules
    {"record": "start"}      a case is given to a worker; without a row after it, it was in flight when the session died
    {"record": "row"}        what became of it; of several rows of one case the last counts
    {"record": "rounds"}     the cases of one point side by side; good until one of them has another row
    {"record": "stopped"}    the session ends in good order, with these cases in flight
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from runner.experiment.case import CaseRecord
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput

FORMAT = 1  # of a run's folder: raised by an incompatible change alone; new columns are none
NAME = "rows.jsonl"

LOOK_S = 0.02
# Between two syncs. What is written outlives every process, and what is synced the machine too; but who writes while
# that goes on waits for the disk as well.
PAUSE_S = 1.0


class Journal:
    """Appends to ``<folder>/rows.jsonl``, which no other process may meanwhile. Use it as a context manager.

    ``starts``: how often each case, by its key, was started in earlier sessions. Raises BadInput if another process
    writes there.
    """

    def __init__(self, folder: Path, starts: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._in_flight: dict[str, None] = {}
        self._begun = False
        self._sync = _Sync()
        self.starts = dict(starts or {})
        self._file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not _locked(self._file):
            time.sleep(LOOK_S)  # somebody may just have looked whether it is locked
            if not _locked(self._file):
                os.close(self._file)
                raise BadInput(f"{folder} is being written by {writer(folder) or 'another process'}; wait for its end")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """The session ends in good order; others may write from now on."""
        with contextlib.suppress(OSError):
            if self._in_flight:
                self._append({"record": "stopped", "keys": list(self._in_flight)})
        with contextlib.suppress(OSError):
            self.settle()
        self._sync.end()
        os.close(self._file)  # and with it the lock

    @property
    def intact(self) -> bool:
        """Whether all that was appended can be found: the file is there, and the disk has not refused any of it."""
        return self.there and self._sync.failure is None

    @property
    def there(self) -> bool:
        """Whether the file is still to be found by others."""
        return os.fstat(self._file).st_nlink > 0

    def settle(self) -> None:
        """All of it is on the disk when this returns. Raises OSError if it is not."""
        self._sync.now(self._file)
        if self._sync.failure is not None:
            raise self._sync.failure

    def begin(self) -> None:
        """Say who writes; done anyway before the first record. Raises OSError."""
        if not self._begun:
            self._begun = True
            started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            who = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
            self._append({"record": "session", **who, "format": FORMAT})

    def start(self, case: CaseRecord) -> None:
        """``case`` is given to a worker. Raises OSError."""
        self._in_flight[case.key] = None
        self.starts[case.key] = self.starts.get(case.key, 0) + 1
        self._append({"record": "start", "key": case.key, "attempt": self.starts[case.key]})

    def row(self, row: Row) -> None:
        """What has become of a case. Raises OSError."""
        self._append({"record": "row", **row.to_record()})
        self._in_flight.pop(row.case.key, None)

    def rounds(self, rounds: Comparison) -> None:
        """The cases of one point have been compared. Raises OSError."""
        self._append({"record": "rounds", **rounds.to_record()})

    def _append(self, record: dict[str, Any]) -> None:
        self.begin()
        if self._sync.failure is not None:
            raise self._sync.failure
        if not self.there:  # writing would succeed, into a file that nobody can open any more
            raise FileNotFoundError(errno.ENOENT, "the folder of this run has been removed", str(self._folder))
        line = orjson.dumps(record) + b"\n"
        if self._torn():
            line = b"\n" + line
        if os.write(self._file, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder / NAME))
        self._sync.soon(self._file)

    def _torn(self) -> bool:
        """Whether the file ends within a line: another session's, or one of this that came out short. Raises OSError.

        Looked at before each record, which takes two microseconds: where there are no locks, another process may write
        here too, and be killed.
        """
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"


class _Sync:
    """A thread that puts a file on the disk soon after it has grown; it takes 1 to 10 ms each time."""

    def __init__(self) -> None:
        self.failure: OSError | None = None  # what was written since the last success may be lost
        self._file = -1
        self._grown, self._ending = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def soon(self, file: int) -> None:
        """``file`` has grown."""
        self._file = file
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
            self._thread.start()
        self._grown.set()

    def now(self, file: int) -> None:
        """``file`` is on the disk, or there is a failure."""
        try:
            os.fdatasync(file)
        except OSError as error:
            self.failure = error

    def end(self) -> None:
        """No more of it."""
        self._ending.set()
        self._grown.set()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while self._grown.wait() and not self._ending.is_set():
            self._grown.clear()
            self.now(self._file)
            self._ending.wait(PAUSE_S)


@dataclass
class Contents:
    """What a journal says. Cases are meant by their keys."""

    rows: dict[str, Row] = field(default_factory=dict)  # the last one of each case, in the order of the first ones
    unreadable: set[str] = field(default_factory=set)  # cases whose last row is of another version
    rounds: list[Comparison] = field(default_factory=list)  # without cases that have had another row since
    starts: dict[str, int] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)  # sessions that died with the case in flight, since its row
    torn: int = 0  # records that a kill or a full disk cut off


def load(folder: Path) -> Contents:
    """The journal in ``folder``. Raises OSError."""
    reader = _Reader()
    with _uncollected(), open(folder / NAME, "rb") as file:
        for line in file:
            try:
                reader.take(orjson.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                reader.found.torn += 1
    return reader.finish()


class _Reader:
    """The records of a journal, in their order."""

    def __init__(self) -> None:
        self.found = Contents()
        self._flying: dict[str, None] = {}  # of the session that is being read
        self._rounds: list[dict[str, Any]] = []
        self._compared: dict[str, list[dict[str, Any]]] = {}  # those of them that hold a case, by its key

    def take(self, record: dict[str, Any]) -> None:
        """The next one. Raises ValueError, KeyError, TypeError, AttributeError if it is none."""
        match record.pop("record"):
            case "row":
                self._row(record["key"], record)
            case "start":
                self._flying[record["key"]] = None
                self.found.starts[record["key"]] = self.found.starts.get(record["key"], 0) + 1
            case "rounds":
                self._rounds.append(record)
                for key in record["batches_us"]:
                    self._compared.setdefault(key, []).append(record)
            case "session":
                self._session_ends()
                written = record.get("format")
                if isinstance(written, int) and written > FORMAT:
                    raise BadInput(
                        f"this run has format {written}, and this version of the runner reads formats up to {FORMAT}; "
                        "update the runner"
                    )
            case "stopped":
                for key in record["keys"]:
                    self._flying.pop(key, None)

    def finish(self) -> Contents:
        """All that they said."""
        self._session_ends()
        for record in self._rounds:
            with contextlib.suppress(TypeError):  # of another version: its rows are compared by their times
                self.found.rounds.append(Comparison.from_record(record))
        return self.found

    def _row(self, key: str, record: dict[str, Any]) -> None:
        try:
            self.found.rows[key] = Row.from_record(record)
            self.found.unreadable.discard(key)
        except (ValueError, TypeError, KeyError):
            self.found.rows.pop(key, None)
            self.found.unreadable.add(key)
        self._flying.pop(key, None)
        self.found.deaths.pop(key, None)
        for rounds in self._compared.pop(key, ()):
            del rounds["batches_us"][key]

    def _session_ends(self) -> None:
        """Whatever it had begun and not ended, it died with."""
        for key in self._flying:
            self.found.deaths[key] = self.found.deaths.get(key, 0) + 1
        self._flying.clear()


def read(folder: Path) -> list[Row]:
    """The rows of the journal in ``folder``; the last of each case counts."""
    return list(load(folder).rows.values())


def read_rounds(folder: Path) -> list[Comparison]:
    """The comparisons in the journal in ``folder`` that still hold."""
    return load(folder).rounds


def writer(folder: Path) -> str:
    """``process 123 on host``, if one writes the journal in ``folder`` now; else ""."""
    try:
        file = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if _locked(file):
            return ""
    finally:
        os.close(file)
    last: dict[str, Any] = {}
    with open(folder / NAME, "rb") as lines:
        for line in lines:
            if line.startswith(b'{"record":"session"'):  # as _append spells it
                with contextlib.suppress(ValueError):
                    last = orjson.loads(line)
    return f"process {last.get('pid', 'unknown')} on {last.get('host', 'an unknown host')}"


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would walk thousands of new records again and again: a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _locked(file: int) -> bool:
    """Whether the lock of the open file is ours now, or there is no such thing on its file system."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
