"""Everything that ``measure=benchmark`` measures of a call on a CPU, with its threads pinned."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, groupby
from pathlib import Path

import torch

from runner.device.identity import separate_pct
from runner.experiment.case import Scalar
from runner.timing import Batches, Call, TimingSettings
from runner.timing import clock as time
from runner.timing.call import Instrument, peak_bytes
from runner.timing.procedure import Taken, race, side_by_side, take
from runner.timing.statistics import FLOORS


def warm_up() -> None:
    """Start the threads of OpenMP and the profiler."""
    numbers = torch.zeros(2**16)
    with pinned(numbers.zero_):
        peak_bytes(numbers.zero_, "cpu")


def measure(call: Call, settings: TimingSettings) -> tuple[dict[str, Scalar], Taken, PerfCounter]:
    """Return the columns of ``call``, with the series and the instrument behind ``wall_us``."""
    instrument = PerfCounter(call.run, call.reset)
    with pinned(instrument.rehearse) as cpus:
        wait_pct = waiting(team())
        taken = take(instrument, settings)
        waited_pct = wait_pct()
    columns: dict[str, Scalar] = taken.columns("wall_us", FLOORS[instrument.name]) | {
        "instrument": instrument.name,
        "calls_per_sample": instrument.calls_per_sample,
        "cpus": cpus,
        "separate_pct": separate_pct("cpu"),
        "cpu_wait_pct": waited_pct,
    }
    return columns, taken, instrument


def compare(calls: Sequence[tuple[Call, Mapping[str, Scalar]]], settings: TimingSettings) -> list[Batches] | None:
    """Sample ``calls`` in paired rounds, with the threads pinned as for a single call.

    All have the same number of calls in a sample. One that is far slower than another keeps its own number.
    """
    instruments = [PerfCounter(call.run, call.reset) for call, _ in calls]
    most = max(instrument.calls_per_sample for instrument in instruments)
    for instrument in instruments:
        if most <= FAR * instrument.calls_per_sample:
            instrument.calls_per_sample = most

    def rehearse() -> None:
        for instrument in instruments:
            instrument.rehearse()

    with pinned(rehearse):
        sample = race if settings.race else side_by_side
        found = sample(instruments, settings.paired_rounds, settings.max_s, settings.target_cpu_pct, on_cpu=True)
    return found and [
        (name, means, count * one.calls_per_sample)
        for (name, means, count), one in zip(found, instruments, strict=True)
    ]


FAR = 10  # times as many calls in a sample of the faster one: then no difference in a sample's overhead decides


def waiting(threads: Collection[int] | None = None) -> Callable[[], float]:
    """Return a function: the share of time from now on in which threads of this process had no core, in percent.

    ``threads``: their ids; None: all.
    """
    started, before_s = time.perf_counter(), waited_s(threads)
    return lambda: 100 * (waited_s(threads) - before_s) / ((time.perf_counter() - started) * torch.get_num_threads())


def team() -> Collection[int] | None:
    """Return the threads that share the work of a call, without a caller's own; None if that is not known."""
    try:
        return openmp_threads().keys() if TASKS.is_dir() else None
    except (OSError, AttributeError):  # no loaded library has OpenMP
        return None


def waited_s(threads: Collection[int] | None = None) -> float:
    """Return the seconds for which ``threads``, or all, were ready to run and had no core; 0 except on Linux."""
    waited_ns = 0
    for path in TASKS.glob("*/schedstat") if threads is None else (TASKS / f"{one}/schedstat" for one in threads):
        with suppress(OSError, IndexError):  # the thread has just ended
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


SHORTEST_SAMPLE_NS = 20_000  # the subtracted overhead of the clock, about 100 ns, is then below 1 %
OFTEN = 100  # readings of the clock's overhead, of which the shortest is subtracted
TRIES = 3  # the shortest counts: otherwise an interrupted call of 1 us would be timed singly, 5 % too long
SLOW_NS = 50_000_000  # calls that take longer are made no more often than needed: every one is a sample


class PerfCounter(Instrument):
    """Times by the host's clock, less its overhead. Short calls are timed several at a time, unless they need a reset.

    ``clock`` returns nanoseconds.
    """

    name = "perf_counter"

    def __init__(
        self,
        run: Callable[[], object],
        reset: Callable[[], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        super().__init__(run, reset or (lambda: None))
        self._clock = clock
        self.calls_per_sample = 1
        self._overhead_ns = min(self._empty_ns() for _ in range(OFTEN))
        self.early_us: list[float] = []
        if reset is None:
            self._choose_calls()

    def _choose_calls(self) -> None:
        while (elapsed := self._shortest_ns()) < SHORTEST_SAMPLE_NS:
            wanted = int(1.2 * self.calls_per_sample * SHORTEST_SAMPLE_NS / max(elapsed, 1))
            self.calls_per_sample = max(2 * self.calls_per_sample, wanted)

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times of one call, in us."""
        elapsed = [self._elapsed_ns() for _ in range(count)]
        return [max(0, ns - self._overhead_ns) / self.calls_per_sample / 1e3 for ns in elapsed]

    def rehearse(self) -> None:
        """Make what will be timed twice, or once if it is slow."""
        if self._is_slow(self._elapsed_ns()):
            return
        if self.early_us:  # an interruption took it for slow
            self.early_us.clear()
            self._choose_calls()
        self._elapsed_ns()

    def _shortest_ns(self) -> int:
        """Return the shortest of some tries, or the first if it is slow."""
        first = self._elapsed_ns()
        return first if self._is_slow(first) else min(first, *(self._elapsed_ns() for _ in range(TRIES - 1)))

    def _is_slow(self, ns: int) -> bool:
        if slow := ns >= SLOW_NS * self.calls_per_sample:
            self.early_us.append(max(0, ns - self._overhead_ns) / self.calls_per_sample / 1e3)
        return slow

    def _empty_ns(self) -> int:
        inner = range(1)
        start = self._clock()
        for _ in inner:
            pass
        return self._clock() - start

    def _elapsed_ns(self) -> int:
        run, inner = self._run, range(self.calls_per_sample)
        self._before()
        start = self._clock()
        for _ in inner:
            run()
        return self._clock() - start


TASKS = Path("/proc/self/task")


@contextmanager
def pinned(call: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Pin the calling thread and each OpenMP thread that shares its work to a CPU of its own, and yield the CPUs.

    ``call`` runs once, pinned; it does what will be measured, at least twice. If it leaves new threads, nothing stays
    pinned: where parallel regions differ in size, OpenMP ends threads and starts others, all on the CPU of the thread
    that starts them. The CPUs are "" then, or if there are more threads than CPUs, the system refuses, or there is no
    Linux or no OpenMP; otherwise for example ``0-3,8``.
    """
    cpus = _assignment()
    if not cpus:
        yield ""
        return
    masks, known = {thread: os.sched_getaffinity(thread) for thread in cpus}, all_threads()
    try:
        lasting = _pin(cpus, call)
        if not lasting:
            _restore(masks, known)
        yield as_ranges(lasting)
    finally:
        _restore(masks, known)


def _pin(cpus: dict[int, int], call: Callable[[], object]) -> set[int]:
    """Pin threads and run ``call``. Return the CPUs of threads alive afterwards; none if pinning cannot last."""
    try:
        for thread, cpu in cpus.items():
            os.sched_setaffinity(thread, {cpu})
    except OSError:
        return set()
    before = all_threads()
    call()
    after = all_threads()
    return set() if after - before else {cpu for thread, cpu in cpus.items() if thread in after}


def _restore(masks: dict[int, set[int]], known: set[int]) -> None:
    """Undo ``_pin``: first for the calling thread, from which new threads inherit, then for the others and new ones."""
    own = threading.get_native_id()
    for thread in (own, *(masks.keys() - {own}), *(all_threads() - known)):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, masks.get(thread, masks[own]))


def all_threads() -> set[int]:
    """Return the ids of all threads of this process."""
    return {int(path.name) for path in TASKS.iterdir()}


def _assignment() -> dict[int, int]:
    """Return thread → CPU for all threads that share the work; empty if they cannot be pinned."""
    if not hasattr(os, "sched_setaffinity") or not TASKS.is_dir():
        return {}
    try:
        current = openmp_threads()
        allowed = set().union(*(os.sched_getaffinity(thread) for thread in current))
    except (OSError, AttributeError):  # no loaded library has OpenMP
        return {}
    return choose(current, {cpu: _core(cpu) for cpu in allowed})


def choose(current: dict[int, int], cores: dict[int, str]) -> dict[int, int]:
    """Choose a CPU for each thread; none if there are fewer CPUs than threads.

    A thread keeps its CPU, which the system has chosen away from other processes, unless another thread has the core.
    The others get a core of their own while there is one, then the CPUs whose cores have the fewest threads.
    ``current``: thread → the CPU that it is on. ``cores``: allowed CPU → name of its core.
    """
    if len(current) > len(cores):
        return {}
    chosen: dict[int, int] = {}

    def threads_on_core(cpu: int) -> int:
        return sum(cores[other] == cores[cpu] for other in chosen.values())

    for thread, cpu in current.items():
        if cpu in cores and not threads_on_core(cpu):
            chosen[thread] = cpu
    for thread in [thread for thread in current if thread not in chosen]:
        chosen[thread] = min(cores.keys() - chosen.values(), key=lambda cpu: (threads_on_core(cpu), cpu))
    return chosen


def _core(cpu: int) -> str:
    """Return a name of the core of ``cpu``: its hardware threads, or the CPU itself if the system does not say."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def openmp_threads() -> dict[int, int]:
    """Return thread → current CPU of the calling thread and of those that its OpenMP regions use.

    It runs a parallel region of the OpenMP library that torch and its compiled code use.
    """
    current: dict[int, int] = {}
    libraries = ctypes.CDLL(None)

    def note(_: object) -> None:
        current[threading.get_native_id()] = libraries.sched_getcpu()

    if (threads := torch.get_num_threads()) == 1:
        note(None)
    else:
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(note)  # as compilers emit the body of a parallel region
        libraries.GOMP_parallel(body, None, ctypes.c_uint(threads), ctypes.c_uint(0))
    return current


def as_ranges(cpus: set[int]) -> str:
    """Return ``{0, 1, 2, 3, 8}`` as ``0-3,8``."""
    offsets = count()
    runs = [list(run) for _, run in groupby(sorted(cpus), key=lambda cpu: cpu - next(offsets))]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
