"""Exchange of bytes between the ranks of a case, through a file in memory: some microseconds, without torch."""

import mmap
import os
import sys
import tempfile
import threading
from time import perf_counter, sleep
from typing import Any

SLOT = 2**16  # bytes that a rank can give at a time
LINE = 64  # bytes of a counter, so that no two share a cache line
LEFT = 2**62  # is added to the counter of a rank that comes to no further turn
HEAD = 8  # bytes of a length
SPIN_S = 0.002  # longest wait at full speed, for ranks that are here already; it would keep gloo's threads from a core
PAUSE_S, LONGEST_PAUSE_S = 0.00002, 0.001  # pauses of other waits become longer


class MeetingPlace:
    """A file through which ``count`` ranks exchange bytes. It can be opened at ``path`` as long as this object exists.

    On Linux it has no name, so that nothing is left if this process is killed.
    """

    def __init__(self, count: int) -> None:
        if sys.platform == "linux":
            self._file: Any = os.fdopen(os.memfd_create("ranks"), "wb")
            self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115
            self.path = self._file.name
        self._file.truncate((LINE + 2 * SLOT) * count)

    def close(self) -> None:
        """Give the file back once all ranks have opened it."""
        self._file.close()


class HasLeft(RuntimeError):
    """Raised if a rank has left, so that waiting for it would never end."""


class Exchange:
    """The side of ``rank``, one of ``count``, at the path of a ``MeetingPlace``."""

    def __init__(self, path: str, rank: int, count: int) -> None:
        self._rank, self._ranks = rank, range(count)
        with open(path, "r+b") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), 0))
        self._counters = self._memory[: LINE * count].cast("q")
        self._turn = 0
        self._fence = threading.Lock()  # orders writes to memory, also on ARM

    def meet(self) -> None:
        """Wait for all ranks. They go on within about a microsecond if each has a core."""
        for spin_s in (0.0, SPIN_S):
            self._turn += 1
            self._wait(spin_s)

    def leave(self) -> None:
        """Let the others, which would wait for this rank, raise HasLeft."""
        self._counters[LINE // 8 * self._rank] = LEFT + self._turn

    def gather(self, data: bytes) -> list[bytes]:
        """Return the ``data`` of every rank."""
        parts = self._slots(len(data).to_bytes(HEAD, "little") + data[: SLOT - HEAD])
        sizes = [int.from_bytes(part[:HEAD], "little") for part in parts]
        gathered = [bytes(part[HEAD : HEAD + size]) for part, size in zip(parts, sizes, strict=True)]
        for start in range(SLOT - HEAD, max(sizes), SLOT):
            more = zip(gathered, self._slots(data[start : start + SLOT]), sizes, strict=True)
            gathered = [before + bytes(part[: max(0, size - start)]) for before, part, size in more]
        return gathered

    def _slots(self, data: bytes) -> list[memoryview]:
        """Return the slots of all ranks, valid until the turn after the next: each has two, as one may be behind."""
        self._turn += 1
        starts = [LINE * len(self._ranks) + SLOT * (2 * rank + self._turn % 2) for rank in self._ranks]
        self._memory[starts[self._rank] : starts[self._rank] + len(data)] = data
        self._wait(0.0)
        return [self._memory[start : start + SLOT] for start in starts]

    def _wait(self, spin_s: float) -> None:
        with self._fence:
            self._counters[LINE // 8 * self._rank] = self._turn
        began = perf_counter()
        for rank in self._ranks:
            while self._counters[LINE // 8 * rank] < self._turn:
                waited_s = perf_counter() - began
                os.sched_yield() if waited_s < spin_s else sleep(min(LONGEST_PAUSE_S, PAUSE_S + waited_s / 10))
            if LEFT <= self._counters[LINE // 8 * rank] < LEFT + self._turn:
                raise HasLeft(f"rank {rank} has raised an exception, so this rank does not wait for it")
        with self._fence:
            pass
