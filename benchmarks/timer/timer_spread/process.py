"""Time every call with both methods in one process, interleaved."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timer.calls import gelu, matmul, softmax, spinning
from benchmarks.timer.timer_spread.series import AGAIN, FIRST, LONGER_1, LONGER_2, METHODS, Arm, Process
from runner.device import identity
from runner.timing import calibration
from runner.timing.preparation import reading_flush
from runner.timing.statistics import trimmed_mean
from runner.timing.timestamps import GraphTimestamps

CAPTURES, WARMUP_ROUNDS = 20, 3
SHORT_US, SHORT_MORE = 5.0, 4  # calls shorter than the first get more samples, by the second
NULL = "null"
SPINS_US = (5, 17, 450)

Call = Callable[[], object]


class EventGraphs:
    """CUDA event pairs at their best: in graphs of one sample, replayed one at a time after a flush that only reads."""

    def __init__(self, call: Call, flush: Call, chance: random.Random) -> None:
        self._chance = chance
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._graphs: list[torch.cuda.CUDAGraph] = []
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            flush()
            call()
            self._stream.synchronize()
            for _ in range(CAPTURES):
                self._capture(call, flush, pool)

    def samples(self, count: int) -> list[float]:
        """Return at least ``count`` times of one call, in us, in their order."""
        times: list[float] = []
        while len(times) < count:
            with torch.cuda.stream(self._stream):
                for index in self._chance.sample(range(CAPTURES), CAPTURES):
                    self._graphs[index].replay()
                    self._stream.synchronize()
                    start, end = self._pairs[index]
                    times.append(start.elapsed_time(end) * 1e3)
        return times

    def _capture(self, call: Call, flush: Call, pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            flush()
            start.record()
            call()
            end.record()
        self._graphs.append(graph)
        self._pairs.append((start, end))


CALLS: dict[str, Callable[[], Call]] = {
    **{f"gelu 2^{log2}": lambda log2=log2: gelu(2**log2) for log2 in (18, 20, 22, 23, 24, 26)},
    "softmax 4096x1024": lambda: softmax(4096, 1024),
    "matmul 1024": lambda: matmul(1024),
    "matmul 2048": lambda: matmul(2048),
    "chain of 9 gelu 2^10": lambda: gelu(2**10, times=9),
    **{f"spin {us} us": lambda us=us: spinning(us) for us in SPINS_US},
}


def make_calls() -> dict[tuple[str, str], Call]:
    """Return every call in every role, each with new buffers."""
    made = {(call, role): make() for call, make in CALLS.items() for role in (FIRST, AGAIN)}
    for us in SPINS_US:
        made |= {(f"spin {us} us", role): spinning(us * more) for role, more in ((LONGER_1, 1.01), (LONGER_2, 1.02))}
    return made


def measure(index: int, rounds: int) -> Process:
    """Run all measurements in this process. ``index`` seeds the data and the order of captures and samples."""
    started, chance = time.perf_counter(), random.Random(index)
    torch.manual_seed(index)
    constant_us = calibration.graph_constant_us(cold_l2=True, captures=CAPTURES)
    flush, calls = reading_flush(), make_calls()
    arms = [Arm(*made, method) for made in calls for method in METHODS] + [Arm(NULL, FIRST, "events")]
    calls[NULL, FIRST] = calibration.launch_empty  # what events read where nothing happens; timestamps have it already
    chance.shuffle(arms)
    instruments: dict[Arm, GraphTimestamps | EventGraphs] = {}
    for arm in arms:
        call = calls[arm.call, arm.role]
        if arm.method == "timestamps":
            instruments[arm] = GraphTimestamps(call, flush, captures=CAPTURES, constant_us=constant_us)
        else:
            instruments[arm] = EventGraphs(call, flush, chance)
    ready = time.perf_counter()
    series = sample(instruments, rounds, chance)
    event_constant_us = trimmed_mean(series.pop(Arm(NULL, FIRST, "events"))) - calibration.empty_kernel_us()
    for arm, samples in series.items():
        if arm.method == "events":
            series[arm] = [us - event_constant_us for us in samples]
    head = {
        "index": index,
        "worker": identity.describe(),
        "constant_us": {"timestamps": constant_us, "events": event_constant_us},
        "empty_kernel_us": calibration.empty_kernel_us(),
        "unloaded_mhz": calibration.unloaded_mhz(),
        "setup_s": ready - started,
        "sampling_s": time.perf_counter() - ready,
    }
    return Process(head, series)


def sample(
    instruments: dict[Arm, GraphTimestamps | EventGraphs], rounds: int, chance: random.Random
) -> dict[Arm, list[float]]:
    """Sample in rounds. In a round every capture of every arm is replayed once, in a new random order of the arms.

    Captures of short calls are replayed ``SHORT_MORE`` times, as by the benchmark itself.
    """
    series: dict[Arm, list[float]] = {arm: [] for arm in instruments}
    order, replays = list(instruments), dict.fromkeys(instruments, 1)
    for turn in range(-WARMUP_ROUNDS, rounds):
        chance.shuffle(order)
        for arm in order:
            times = instruments[arm].samples(CAPTURES * replays[arm])
            if turn >= 0:
                series[arm] += times
            elif trimmed_mean(times) < SHORT_US:
                replays[arm] = SHORT_MORE
    return series
