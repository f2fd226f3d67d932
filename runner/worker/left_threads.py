"""Threads that a case has left computing, which would make every later time of the process too long."""

from __future__ import annotations

import threading
from collections.abc import Set
from contextlib import suppress

from ..timing import clock as time
from ..timing.cpu import TASKS, scheduled_s

LOOKS, LOOK_S = 10, 0.005  # OpenMP's threads wait for up to some ms without sleeping
BUSY = 0.5  # share of each look


def computing(threads: Set[int]) -> list[str]:
    """Return the names of those of ``threads``, by their ids, that compute in each of several looks."""
    for _ in range(LOOKS):
        if not threads:
            return []
        before = {thread: _wanted_s(thread) for thread in threads}
        time.sleep(LOOK_S)
        threads = {
            thread
            for thread in threads
            if _wanted_s(thread) - before[thread] > BUSY * LOOK_S or _waits_for_a_core(thread)
        }
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return sorted(names.get(thread) or _command(thread) for thread in threads)


def _wanted_s(thread: int) -> float:
    """Return the seconds in which ``thread`` ran or, as far as Linux has counted them, waited for a core."""
    return scheduled_s(thread, 0) + scheduled_s(thread, 1)


def _waits_for_a_core(thread: int) -> bool:
    """Say whether ``thread`` is runnable now: on a busy machine it may get no core for the whole of a look."""
    with suppress(OSError):
        return (TASKS / f"{thread}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return False


def _command(thread: int) -> str:
    with suppress(OSError):
        return (TASKS / f"{thread}/comm").read_text().strip()
    return str(thread)
