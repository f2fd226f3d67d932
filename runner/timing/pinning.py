"""Each of torch's compute threads on a CPU of its own, while something is measured."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

TOPOLOGY = Path("/sys/devices/system/cpu")
TASKS = Path("/proc/self/task")

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # what a compiler makes of the body of an OpenMP parallel region


@contextmanager
def pinned(call: Callable[[], object] = lambda: None) -> Iterator[str]:
    """One CPU for the calling thread and for each OpenMP thread that shares its work, until the end.

    ``call`` does, pinned, what will be measured, twice or more. If it leaves threads that were not there, none stays
    pinned: OpenMP ends threads where a region wants fewer and starts others where the next wants more, all on the CPU
    of the thread that starts them. Threads that come and go within ``call`` are not seen, and share that CPU.

    Yields:
        The CPUs, such as ``0-3,8``; "" where the threads are not pinned: there are more of them than CPUs, the system
        refuses, or there is no Linux or no OpenMP to ask.

    """
    buffer_sets = _places()
    if not buffer_sets:
        yield ""
        return
    masks, known = {thread: os.sched_getaffinity(thread) for thread in buffer_sets}, _threads()
    try:
        cpus = _pin(buffer_sets, call)
        if not cpus:
            _restore(masks, known)
        yield _text(cpus)
    finally:
        _restore(masks, known)


def _pin(buffer_sets: dict[int, int], call: Callable[[], object]) -> set[int]:
    """The CPUs of those threads that ``call`` leaves alive; none if pinning is refused or would not last."""
    try:
        for thread, cpu in buffer_sets.items():
            os.sched_setaffinity(thread, {cpu})
    except OSError:
        return set()
    before = _threads()
    call()
    after = _threads()
    return set() if after - before else {cpu for thread, cpu in buffer_sets.items() if thread in after}


def _restore(masks: dict[int, set[int]], known: set[int]) -> None:
    """Undo ``_pin``: the calling thread first, whose children inherit from it, then the others, and those not known."""
    own = threading.get_native_id()
    for thread in (own, *(masks.keys() - {own}), *(_threads() - known)):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, masks.get(thread, masks[own]))


def _threads() -> set[int]:
    """Every thread of this process."""
    return {int(path.name) for path in TASKS.iterdir()}


def _places() -> dict[int, int]:
    """Thread → CPU, one each; empty if that cannot be."""
    if not hasattr(os, "sched_setaffinity") or not TASKS.is_dir():
        return {}
    try:
        here = _team()
        allowed = set().union(*(os.sched_getaffinity(thread) for thread in here))
    except (OSError, AttributeError):  # no such function in any library that is loaded
        return {}
    return choose(here, {cpu: _core(cpu) for cpu in allowed})


def choose(here: dict[int, int], cores: dict[int, str]) -> dict[int, int]:
    """A CPU of its own for each thread; empty if there are fewer than threads.

    A thread keeps the CPU it is on, where the system has put it beside no other process, if no other thread has the
    core. The rest take what is left: a core of their own as long as there is one, then beside the fewest.

    Args:
        here: thread → the CPU it is on
        cores: each CPU there is → its core, by any name

    """
    if len(here) > len(cores):
        return {}
    buffer_sets: dict[int, int] = {}

    def crowd(cpu: int) -> int:
        return sum(cores[other] == cores[cpu] for other in buffer_sets.values())

    for thread, cpu in here.items():
        if cpu in cores and not crowd(cpu):
            buffer_sets[thread] = cpu
    for thread in [thread for thread in here if thread not in buffer_sets]:
        buffer_sets[thread] = min(cores.keys() - buffer_sets.values(), key=lambda cpu: (crowd(cpu), cpu))
    return buffer_sets


def _core(cpu: int) -> str:
    """The hardware threads that share a core with ``cpu``; itself where the system does not say."""
    try:
        return (TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _team() -> dict[int, int]:
    """Thread → CPU it is on, for the calling thread and those that its OpenMP regions run on.

    A region of our own tells, whoever started the threads and whenever, and whatever other threads there are. Its entry
    point is the first of that name among the libraries loaded, as it is for torch and for what torch compiles.
    """
    here: dict[int, int] = {}
    libraries = ctypes.CDLL(None)

    def note(_: object) -> None:
        here[threading.get_native_id()] = libraries.sched_getcpu()

    if (count := torch.get_num_threads()) == 1:
        note(None)
    else:
        body = _REGION(note)
        libraries.GOMP_parallel(body, None, ctypes.c_uint(count), ctypes.c_uint(0))
    return here


def _text(cpus: set[int]) -> str:
    """``{0, 1, 2, 3, 8}`` as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
