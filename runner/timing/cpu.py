"""The measurement of a call on a CPU by ``measure=benchmark``, with pinned threads."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, groupby
from pathlib import Path

import torch
from torch import Tensor

from ..device.files import text_in
from ..device.identity import separate_pct
from ..records.case import Scalar
from . import clock as time
from . import ranks
from .call import Batches, Call, in_turn
from .instrument import Instrument
from .nested import returned_tensors
from .peak_memory import peak_bytes
from .procedure import Taken, paired_rounds, race, take
from .settings import TimingSettings
from .spot_checks import SpotChecks
from .statistics import FLOORS


def warm_up() -> None:
    """Start the threads of OpenMP and the profiler."""
    numbers = torch.zeros(2**16)
    with pinned(numbers.zero_):
        peak_bytes(numbers.zero_, "cpu")


def measure(call: Call, settings: TimingSettings) -> tuple[dict[str, Scalar], Taken, PerfCounter]:
    """Return the columns of ``call``, with the series and the instrument behind ``wall_us``."""
    instrument = _counter(call)
    with pinned(instrument.rehearse) as cpus:
        wait_pct = waiting(openmp_threads().keys())
        series = take(instrument, settings)
        waited_pct = wait_pct()
    columns: dict[str, Scalar] = series.columns("wall_us", FLOORS[instrument.name]) | {
        "instrument": instrument.name,
        "calls_per_sample": instrument.calls_per_sample,
        "cpus": cpus,
        "separate_pct": separate_pct("cpu"),
        "cpu_wait_pct": waited_pct,
    }
    columns |= ranks.columns(instrument.spreads_us)
    return columns, series, instrument


def compare(calls: Sequence[tuple[Call, Mapping[str, Scalar]]], settings: TimingSettings) -> list[Batches] | None:
    """Sample ``calls`` in paired rounds, with the threads pinned as for a single call.

    A sample has the same number of calls for all, except for calls that are far slower than another.
    """
    instruments = [_counter(call) for call, _ in calls]
    most = max(instrument.calls_per_sample for instrument in instruments)
    for instrument in instruments:
        if most <= FAR * instrument.calls_per_sample:
            instrument.calls_per_sample = most

    with pinned(in_turn(*(instrument.rehearse for instrument in instruments))):
        sample = race if settings.race else paired_rounds
        rounds = sample(instruments, settings.paired_rounds, settings.max_s, settings.target_cpu_pct, on_cpu=True)
    return rounds and [
        batches._replace(calls=batches.calls * instrument.calls_per_sample)
        for batches, instrument in zip(rounds, instruments, strict=True)
    ]


def _counter(call: Call) -> PerfCounter:
    counter = PerfCounter(call.run, call.reset)
    counter.checks = SpotChecks(call.judge)
    return counter


FAR = 10  # times the calls in a sample; beyond, a difference in a sample's overhead does not matter


def waiting(threads: Collection[int] = ()) -> Callable[[], float]:
    """Return a function that returns the share of time since now in which threads had no core, in percent.

    ``threads``: ids of threads of this process; none: all.
    """
    started, before_s = time.perf_counter(), waited_s(threads)
    return lambda: 100 * (waited_s(threads) - before_s) / ((time.perf_counter() - started) * torch.get_num_threads())


def waited_s(threads: Collection[int] = ()) -> float:
    """Return the seconds for which ``threads``, or all, were ready to run without a core; 0 except on Linux."""
    return sum(scheduled_s(thread, 1) for thread in threads or all_threads())


def scheduled_s(thread: int, place: int) -> float:
    """Return the seconds for which a thread was on a core (``place`` 0) or ready without one (1), if known; else 0."""
    seconds = [int(word) / 1e9 for word in text_in(TASKS / f"{thread}/schedstat").split()]
    return seconds[place] if seconds else 0.0  # it has just ended


SHORTEST_SAMPLE_NS = 20_000  # so that the clock's overhead of about 100 ns, which is subtracted, is below 1 %
OFTEN = 100  # readings of the clock's overhead; the shortest is subtracted
TRIES = 3  # the shortest counts: an interrupted call of 1 us would be timed singly, 5 % too long
SLOW_NS = 50_000_000  # every longer call is a sample, so that few are made


class PerfCounter(Instrument):
    """Times by the host's clock, less its overhead. Several short calls are timed together, unless they need a reset.

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
        self._overhead_ns = int(ranks.current.agreed(min(self._empty_ns() for _ in range(OFTEN))))
        self.early_us: list[float] = []
        if reset is None:
            self._choose_calls()

    def _choose_calls(self) -> None:
        while (elapsed := self._shortest_ns()) < SHORTEST_SAMPLE_NS:
            estimated = int(1.2 * self.calls_per_sample * SHORTEST_SAMPLE_NS / max(elapsed, 1))
            self.calls_per_sample = max(2 * self.calls_per_sample, estimated)

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times of one call, in us."""
        elapsed = []
        for _ in range(count):
            elapsed.append(self._elapsed_ns())
            if self.checks.due():
                self.checks.judge(self._further_outputs)
        return [max(0, ns - self._overhead_ns) / self.calls_per_sample / 1e3 for ns in elapsed]

    def rehearse(self) -> None:
        """Make the sample that will be timed twice, or once if it is slow."""
        if self._is_slow(self._elapsed_ns()):
            return
        if self.early_us:  # it seemed slow because it was interrupted
            self.early_us.clear()
            self._choose_calls()
        self._elapsed_ns()

    def _shortest_ns(self) -> int:
        """Return the shortest of ``TRIES`` tries, or the first if it is slow."""
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

    def _further_outputs(self) -> Sequence[Tensor]:
        """Make a sample that is not recorded, and return the outputs of one of its calls."""
        kept = random.randrange(self.calls_per_sample)
        self._elapsed_ns(kept)
        outputs, self._kept = returned_tensors(self._kept), None
        return outputs

    def _elapsed_ns(self, kept: int = -1) -> int:
        """Make the calls of a sample. The result of the call at the place ``kept`` outlives it, and is not timed."""
        run, inner = self._run, range(self.calls_per_sample if kept < 0 else kept)
        self._before()
        ranks.current.meet()
        start = self._clock()
        for _ in inner:
            run()
        elapsed_ns, ns_per_us = self._clock() - start, 1e3 * self.calls_per_sample
        if kept >= 0:
            self._kept = run()
            for _ in range(kept + 1, self.calls_per_sample):
                run()
        # After the last call, since the place of the one that is kept differs between ranks.
        return round(self.slowest([elapsed_ns / ns_per_us])[0] * ns_per_us)


TASKS = Path("/proc/self/task")


@contextmanager
def pinned(call: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Pin the calling thread and each OpenMP thread that shares its work to a separate CPU; yield the CPUs.

    ``call`` runs once, pinned, and makes the measured call at least twice. If it leaves new threads, pinning is undone:
    for parallel regions of different size, OpenMP ends threads and starts others, all on the CPU of the thread that
    starts them. The CPUs are for example ``0-3,8``. They are "" if pinning was undone, if there are more threads than
    CPUs, if the system refuses, or without Linux or OpenMP.
    """
    cpus = _assignment()
    if ranks.current.any(not cpus):
        yield ""
        return
    masks, threads_before = {thread: os.sched_getaffinity(thread) for thread in cpus}, all_threads()
    try:
        lasting = _pin(cpus, call)
        if not lasting:
            _restore(masks, threads_before)
        yield as_ranges(lasting)
    finally:
        _restore(masks, threads_before)


def _pin(cpus: dict[int, int], call: Callable[[], object]) -> set[int]:
    """Pin threads and run ``call``. Return the CPUs of the threads alive afterwards; empty if pinning cannot last."""
    refused = False
    try:
        for thread, cpu in cpus.items():
            os.sched_setaffinity(thread, {cpu})
    except OSError:
        refused = True
    before = all_threads()
    call()  # in any case, since other ranks may call it too
    after = all_threads()
    return set() if refused or after - before else {cpu for thread, cpu in cpus.items() if thread in after}


def _restore(masks: dict[int, set[int]], threads_before: set[int]) -> None:
    """Undo ``_pin``: first for the calling thread, from which new threads inherit, then for the others and new ones."""
    current = threading.get_native_id()
    for thread in (current, *(masks.keys() - {current}), *(all_threads() - threads_before)):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, masks.get(thread, masks[current]))


def all_threads() -> set[int]:
    """Return the ids of all threads of this process; none except on Linux."""
    return set(map(int, os.listdir(TASKS))) if TASKS.is_dir() else set()


def _assignment() -> dict[int, int]:
    """Return thread → CPU for the threads that share the work; empty if they cannot be pinned."""
    current = openmp_threads()
    try:
        allowed = sorted(set().union(*(os.sched_getaffinity(thread) for thread in current)))
    except OSError:  # one has ended
        return {}
    rank, count = ranks.current.rank, ranks.current.count  # each has its part; the threads of gloo go where they like
    part = allowed[len(allowed) * rank // count : len(allowed) * (rank + 1) // count]
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"  # a core is named by its hardware threads
    return choose_cores(current, {cpu: text_in(topology.format(cpu)).strip() or str(cpu) for cpu in part})


def choose_cores(current: dict[int, int], cores: dict[int, str]) -> dict[int, int]:
    """Choose a CPU for each thread; empty if there are fewer CPUs than threads.

    A thread keeps its CPU, which the system has chosen away from other processes, unless another thread has the core.
    Other threads get free cores, then CPUs whose cores have the fewest threads.

    Args:
        current: thread → its CPU.
        cores: allowed CPU → name of its core.

    """
    if len(current) > len(cores):
        return {}
    chosen: dict[int, int] = {}

    def threads_on_core(cpu: int) -> int:
        return sum(cores[taken] == cores[cpu] for taken in chosen.values())

    for thread, cpu in current.items():
        if cpu in cores and not threads_on_core(cpu):
            chosen[thread] = cpu
    for thread in [thread for thread in current if thread not in chosen]:
        chosen[thread] = min(cores.keys() - chosen.values(), key=lambda cpu: (threads_on_core(cpu), cpu))
    return chosen


def openmp_threads() -> dict[int, int]:
    """Return thread → current CPU for the calling thread and the threads of its OpenMP regions; {} if unknown.

    It runs a parallel region of the OpenMP library that torch and its compiled code use.
    """
    current: dict[int, int] = {}
    libraries = ctypes.CDLL(None)
    if not TASKS.is_dir() or not hasattr(libraries, "GOMP_parallel"):  # not Linux, or another OpenMP
        return current

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
