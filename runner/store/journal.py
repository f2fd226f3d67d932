"""The journal ``rows.jsonl``: one JSON record a line, appended as it happens, by one process alone.

A record is written by one ``write`` to a file opened for appending. It survives a crash of this process at once, and a
crash of the machine about a second later, when a thread has flushed it to the disk. If a kill or a full disk cuts off a
record, the next one begins with a newline, and readers skip the torn line. Before each record the writer looks whether
the folder still has this file, with all that has been written to it.

    {"record": "session"}    a process begins to write: the run's first, or one that resumes it
    {"record": "start"}      a case is given to a worker; without a row after it, it was in flight when the session died
    {"record": "row"}        the result of a case; the last row of a case counts
    {"record": "rounds"}     the comparison of the cases of a problem; valid until one of them has another row
    {"record": "stopped"}    the session ends in good order, with these cases in flight
"""

import contextlib
import errno
import fcntl
import gc
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from ..device.files import no_link
from ..records import untrusted
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..records.schema import UNREADABLE

FORMAT = 1  # format of a run's folder, raised by an incompatible change. A new column is compatible
STARTED = "%Y-%m-%dT%H:%M:%S%z"  # form of the recorded start of a session
NAME = "rows.jsonl"
MOST_UNREADABLE = 100_000  # lines; a damaged journal has a few, and another large file would take minutes
PAUSE_S = 1.0  # between two flushes: a write during a flush waits for the disk


class Journal:
    """Append to ``<folder>/rows.jsonl``, which stays locked meanwhile. Use it as a context manager.

    ``starts`` counts how often each case, by its key, has been given to a worker; set it to continue the count of
    earlier sessions. Raises BadInput if another process writes there, and OSError.
    """

    def __init__(self, folder: Path) -> None:
        self.starts: Counter[str] = Counter()
        self._folder = folder
        self._in_flight: dict[str, None] = {}
        self._begun = False
        self._file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        if not _lock(self._file):
            os.close(self._file)
            raise BadInput(f"{folder} is being written by {writer(folder) or 'another process'}; wait for its end")
        self._size = os.fstat(self._file).st_size  # after the last record; another process may add to it, but not take
        self._foreign: set[str] = set()  # keys of cases of which another process has appended rows
        self._failure: OSError | None = None  # error of the disk: what was written since the last flush may be lost
        self._written, self._ending = threading.Event(), threading.Event()
        self._flusher = threading.Thread(target=self._flush_after_writes, name="journal", daemon=True)
        self._flusher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            self.stop()
        self.close()

    def stop(self) -> None:
        """Record that the session ends in good order: the cases in flight have not ended it."""
        with contextlib.suppress(OSError):
            if self._in_flight:
                self._append({"record": "stopped", "keys": list(self._in_flight)})

    def close(self) -> None:
        """Release the lock."""
        self._ending.set()
        self._written.set()
        self._flusher.join()
        self._flush()
        os.close(self._file)  # and with it the lock

    @property
    def loss(self) -> str:
        """What has happened to the run, so that readers of its folder do not find its records; "" if they do."""
        try:
            named, written = os.stat(self._folder / NAME, follow_symlinks=False), os.fstat(self._file)
        except FileNotFoundError:
            return "its folder has been removed or renamed"
        except OSError as error:
            return f"its {NAME} cannot be found: {error.strerror}"
        if not os.path.samestat(named, written):
            return f"its {NAME} has been replaced"
        return f"its {NAME} has been truncated" if written.st_size < self._size else ""

    @property
    def intact(self) -> bool:
        """Whether the folder has all records, and the disk has refused none of them."""
        return not self.loss and self._failure is None

    def foreign_rows(self) -> set[str]:
        """Return the keys of cases of which another process has appended rows since the last call."""
        self._note_foreign(os.fstat(self._file).st_size)
        foreign, self._foreign = self._foreign, set()
        return foreign

    def _note_foreign(self, size: int) -> None:
        """Note what another process has appended. A case can do so, and the last row of a case counts."""
        for line in os.pread(self._file, size - self._size, self._size).splitlines() if size > self._size else ():
            with contextlib.suppress(*UNREADABLE):
                record = orjson.loads(line)
                if record["record"] == "row":
                    self._foreign.add(str(record["key"]))
        self._size = max(size, self._size)

    def settle(self) -> None:
        """Flush all records to the disk. Raises OSError."""
        self._flush()
        self._check()

    def begin(self) -> None:
        """Record who writes, unless that is done. The first record does it too. Raises OSError."""
        if not self._begun:
            self._begun = True
            who = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime(STARTED)}
            self._append({"record": "session", **who, "format": FORMAT})

    def start(self, case: CaseRecord) -> None:
        """Record that ``case`` is given to a worker. Raises OSError."""
        self._in_flight[case.key] = None
        self.starts[case.key] += 1
        self._append({"record": "start", "key": case.key, "attempt": self.starts[case.key]})

    def row(self, row: Row) -> None:
        """Record the result of a case. Raises OSError."""
        self._append({"record": "row", **row.to_record()})
        self._in_flight.pop(row.case.key, None)

    def rounds(self, rounds: PairedRounds) -> None:
        """Record the comparison of the cases of a problem. Raises OSError."""
        self._append({"record": "rounds", **rounds.to_record()})

    def _append(self, record: dict[str, Any]) -> None:
        self.begin()
        self._check()
        line = orjson.dumps(record) + b"\n"
        size = os.fstat(self._file).st_size
        self._note_foreign(size)
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # the last record is torn
            line = b"\n" + line
        if os.write(self._file, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder / NAME))
        self._size = size + len(line)
        self._written.set()

    def _check(self) -> None:
        """Raise OSError if a record has been lost. Another one could be written, where nobody would find it."""
        if self._failure is not None:
            raise self._failure
        if loss := self.loss:
            raise FileNotFoundError(errno.ENOENT, loss, str(self._folder))

    def _flush(self) -> None:
        try:
            getattr(os, "fdatasync", os.fsync)(self._file)  # macOS has no fdatasync
        except OSError as error:
            self._failure = error

    def _flush_after_writes(self) -> None:
        """Flush at most once in ``PAUSE_S``: it takes 1 to 10 ms, which no case should wait for."""
        while self._written.wait() and not self._ending.is_set():
            self._written.clear()
            self._flush()
            self._ending.wait(PAUSE_S)


@dataclass
class Contents:
    """What a journal says, and what this session adds to it. Cases are named by their keys."""

    rows: dict[str, Row] = field(default_factory=dict)  # the last row of each case, in the order of the first ones
    starts: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)  # sessions since its row that died with the case in flight
    unreadable: int = 0  # records that are damaged or cut off
    _in_flight: set[str] = field(default_factory=set)  # in the session that is being read
    _rounds: list[PairedRounds] = field(default_factory=list)
    _rounds_before: dict[str, int] = field(default_factory=dict)  # how many there were when a case got its last row

    @property
    def rounds(self) -> list[PairedRounds]:
        """Paired rounds, without the cases that have had another row since."""
        valid = []
        for place, rounds in enumerate(self._rounds):
            keys = {key for key in rounds.instruments if self._rounds_before.get(key, 0) <= place}
            batches_us = {key: batches for key, batches in rounds.batches_us.items() if key in keys}
            instruments = {key: name for key, name in rounds.instruments.items() if key in keys}
            valid.append(replace(rounds, batches_us=batches_us, instruments=instruments))
        return valid

    def add_row(self, row: Row) -> None:
        """Replace the row of its case."""
        self.deaths.pop(row.case.key, None)
        self._rounds_before[row.case.key] = len(self._rounds)
        self.rows[row.case.key] = row

    def add_rounds(self, rounds: PairedRounds) -> None:
        """Add a comparison, which holds for the rows so far."""
        self._rounds.append(rounds)

    def read(self, record: dict[str, Any]) -> None:
        """Apply the next record of the journal. Raises one of UNREADABLE if it is malformed."""
        match record["record"]:
            case "row":
                self._in_flight.discard(record["key"])  # also if the rest cannot be read: the case has ended
                self.add_row(Row.from_record(record))
            case "start":
                self._in_flight.add(record["key"])
                self.starts[record["key"]] += 1
            case "rounds":
                self.add_rounds(PairedRounds.from_record(record))
            case "stopped":
                self._in_flight.difference_update(record["keys"])
            case "session":
                self.end_session()

    def end_session(self) -> None:
        """Count a death for each case that the session left in flight."""
        self.deaths.update(self._in_flight)
        self._in_flight.clear()


def read_records(folder: Path, read: Callable[[dict[str, Any]], None], wanted: Callable[[bytes], bool] = bool) -> int:
    """Call ``read`` with each record of the journal in ``folder`` whose line is ``wanted``, as all are by default.

    Return the number of records that are damaged or cut off: parsing them, or ``read``, raises one of UNREADABLE.
    Raises BadInput if the journal cannot be read or the run has another format, or a name with control characters.
    """
    unreadable = 0
    if untrusted.STEERS.search("/".join(folder.parts[-2:])):  # which come with a folder of others
        raise BadInput(f"{untrusted.visible(str(folder))}: its name has control characters; rename it")
    try:
        with open(folder / NAME, "rb", opener=no_link) as file:
            for line in filter(wanted, untrusted.lines(file)):
                try:
                    record = untrusted.parse(line)
                    read(record)
                    if record["record"] == "session" and (written := int(record["format"])) != FORMAT:
                        reads = f"this version of the runner reads format {FORMAT}"
                        raise BadInput(f"{folder}: this run has format {written}, and {reads}; update the runner")
                except UNREADABLE:
                    unreadable += 1
                    if unreadable > MOST_UNREADABLE:
                        raise OSError(f"more than {MOST_UNREADABLE:,} lines of it are not records") from None
    except OSError as error:
        raise BadInput(f"{folder / NAME} cannot be read: {error.strerror or error}") from None
    return unreadable


def load(folder: Path) -> Contents:
    """Return the contents of the journal in ``folder``. Raises BadInput as ``read_records`` does."""
    contents = Contents()
    gc.disable()  # it would walk thousands of new records again and again, for a third of the time
    try:
        contents.unreadable = read_records(folder, contents.read)
    finally:
        gc.enable()
    contents.end_session()
    return contents


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of the journal in ``folder``, the last one of each case. Raises BadInput as ``load`` does."""
    return list(load(folder).rows.values())


def writer(folder: Path) -> str:
    """Return ``process 123 on host`` if a process writes the journal in ``folder`` now, else ""."""
    try:
        with open(folder / NAME, "rb", opener=no_link) as file:
            if _lock(file.fileno()):
                return ""
            sessions = [line for line in untrusted.lines(file) if line.startswith(b'{"record":"session"')]
    except OSError:
        return ""
    try:
        last = untrusted.parse(sessions[-1])
        return f"process {last['pid']} on {last['host']}"
    except UNREADABLE:
        return "another process"


def _lock(file: int) -> bool:
    """Lock an open file. Return False if another process has locked it; True also where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
