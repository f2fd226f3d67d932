"""``measure=benchmark`` on a CPU."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from runner.experiment.case import Scalar
from runner.timing import Call, TimingSettings
from runner.timing.call import peak_bytes, tensors
from runner.timing.procedure import Taken, side_by_side, take
from runner.timing.statistics import FLOORS


def warm_up() -> None:
    """OpenMP starts its threads, and the profiler itself."""
    numbers = torch.zeros(2**16)
    with pinned(numbers.zero_):
        peak_bytes(numbers.zero_, "cpu")


def prepare(settings: TimingSettings) -> None:
    """Nothing that calls could share: each has its own clock and threads."""


def measure(call: Call, settings: TimingSettings) -> tuple[dict[str, Scalar], Taken, PerfCounter]:
    """The columns of the host's clock, and how much of the CPU other processes took; with the series behind them."""
    instrument = PerfCounter(call.run, call.reset)
    with pinned(lambda: instrument.samples(2)) as cpus:
        started, waited_s = time.perf_counter(), _waited_s()
        taken = take(instrument, settings)
    could_have_run_s = (time.perf_counter() - started) * torch.get_num_threads()
    columns: dict[str, Scalar] = taken.columns("wall_us", FLOORS[instrument.name]) | {
        "instrument": instrument.name,
        "calls_per_sample": instrument.calls_per_sample,
        "cpus": cpus,
        "cpu_wait_pct": 100 * (_waited_s() - waited_s) / could_have_run_s,
    }
    return columns, taken, instrument


def compare(
    calls: Sequence[tuple[Call, Mapping[str, Scalar]]], settings: TimingSettings
) -> list[tuple[str, list[float]]] | None:
    """Side by side, the threads pinned as they are for one."""
    again = [PerfCounter(call.run, call.reset) for call, _ in calls]
    with pinned(lambda: [instrument.samples(2) for instrument in again]):
        return side_by_side(again, settings.paired_rounds, settings.max_s)


def _waited_s() -> float:
    """Seconds that the threads of this process were ready to run and had no core. 0 where there is no Linux to ask."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            waited_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):  # the thread has just ended
            continue
    return waited_ns / 1e9


SHORTEST_SAMPLE_NS = 20_000  # what is taken off for the clock's own cost, about 100 ns, is then below 1 %
OFTEN = 100  # the shortest of so many readings of nothing is what every sample has in it at least
TRIES = 3  # the shortest counts: a call of 1 us that was interrupted once would else be timed singly, 5 % too long


class PerfCounter:
    """Times several calls at once where one is too short for the clock, unless each needs a ``reset`` before it.

    What the clock reads where nothing happens is taken off each sample: 0.1 us, of which single calls have all.
    ``clock`` is the clock, in nanoseconds; tests bring their own.
    """

    name = "perf_counter"

    def __init__(
        self,
        call: Callable[[], object],
        reset: Callable[[], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._call = call
        self._reset = reset
        self._clock = clock
        self.calls_per_sample = 1
        self._nothing_ns = min(self._nothing() for _ in range(OFTEN))
        while reset is None and (elapsed := min(self._elapsed_ns() for _ in range(TRIES))) < SHORTEST_SAMPLE_NS:
            wanted = int(1.2 * self.calls_per_sample * SHORTEST_SAMPLE_NS / max(elapsed, 1))
            self.calls_per_sample = max(2 * self.calls_per_sample, wanted)

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        elapsed = [self._elapsed_ns() for _ in range(count)]
        return [max(0, ns - self._nothing_ns) / self.calls_per_sample / 1e3 for ns in elapsed]

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        if self._reset is not None:
            self._reset()
        yield tensors(self._call())

    def _nothing(self) -> int:
        inner = range(1)
        start = self._clock()
        for _ in inner:
            pass
        return self._clock() - start

    def _elapsed_ns(self) -> int:
        call, inner = self._call, range(self.calls_per_sample)
        if self._reset is not None:
            self._reset()
        start = self._clock()
        for _ in inner:
            call()
        return self._clock() - start


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
