"""Which instrument times a call on this GPU: the best that the call and the GPU allow, or the one asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from runner.experiment.case import Scalar, interpreted
from runner.timing import Call, TimingSettings, calibration
from runner.timing.call import tensors
from runner.timing.capture import CaptureError
from runner.timing.cupti import CuptiTime
from runner.timing.preparation import BufferSets, preparation
from runner.timing.procedure import rest
from runner.timing.statistics import trimmed_mean
from runner.timing.timestamp_buffer import spin_cycles, tick_ns
from runner.timing.timestamps import GraphTimestamps, StreamTimestamps

COARSEST_NS = 64  # step of the GPU's timer beyond which timestamps are no better than events
NOT_WAITED_FOR = "it leaves work on a stream that nobody waits for: timed by the host's clock, launching included"


def choose(call: Call, settings: TimingSettings, buffer_sets: BufferSets | None = None) -> tuple[Instrument, str]:
    """The instrument of ``call``, and why it is not the best one; empty if it is."""
    if settings.instrument != "auto":
        return build(settings.instrument, call, settings, buffer_sets=buffer_sets), ""
    if why := no_timestamps():
        return build("cuda_events", call, settings), why
    try:
        return _graphs(call, settings, buffer_sets), ""
    except CaptureError as error:
        return build("stream_timestamps", call, settings), f"no CUDA graph can hold this call: {error}"


def _graphs(call: Call, settings: TimingSettings, buffer_sets: BufferSets | None) -> Instrument:
    """Capture graphs, in the first buffer set alone where the outputs of all do not fit. Raises CaptureError."""
    try:
        return build("graph_timestamps", call, settings, buffer_sets=buffer_sets)
    except CaptureError as error:
        if buffer_sets is None or len(buffer_sets) == 1 or not isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
    buffer_sets.leave()  # out here the error no longer holds what was built
    return build("graph_timestamps", call, settings, buffer_sets=buffer_sets)


def corrected(
    instrument: Instrument, note: str, seen: CuptiTime | None, call: Call, settings: TimingSettings
) -> tuple[Instrument, str]:
    """The same, after CUPTI has been asked what an ordinary call does."""
    if seen is None:
        return instrument, note
    if seen.detached:
        return build("host_clock", call, settings), NOT_WAITED_FOR
    if (held := nodes(instrument)) is not None and held < seen.kernels:
        missing = f"its CUDA graph holds {held} of the {seen.kernels} kernels of a call"
        return build("stream_timestamps", call, settings), missing
    return instrument, note


def nodes(instrument: Instrument) -> int | None:
    """Kernels, copies and fills of a call in the graph that is timed; None if there is none, or it is not known."""
    return instrument.contents.work if isinstance(instrument, GraphTimestamps) and instrument.contents else None


def build(
    name: str, call: Call, settings: TimingSettings, *, buffer_sets: BufferSets | None = None, warm: bool = False
) -> Instrument:
    """The instrument called ``name``; ``warm``: without a flush, whatever ``settings`` say. Raises CaptureError."""
    cold = settings.cold_l2 and not warm
    before = preparation(call.reset, cold_l2=cold)
    if name == "graph_timestamps":
        constant_us = calibration.graph_constant_us(cold_l2=cold, captures=settings.captures)
        return GraphTimestamps(
            call.run, before, captures=settings.captures, constant_us=constant_us, buffer_sets=buffer_sets
        )
    if name == "stream_timestamps":
        return StreamTimestamps(call.run, before, constant_us=calibration.stream_constant_us(cold_l2=cold))
    kind = CudaEvents if name == "cuda_events" else HostClock
    return kind(call.run, before)


def no_timestamps() -> str:
    """Why timestamps cannot be had here; empty if they can."""
    if interpreted():
        return "timestamps are Triton kernels, and TRITON_INTERPRET=1 runs those on the CPU"
    tick = tick_ns()
    return f"this GPU's timer steps by {tick:g} ns: too coarse for timestamps" if tick > COARSEST_NS else ""


IN_FLIGHT = 50  # samples queued between two synchronisations: the host stays ahead, the queue stays short


class CudaEvents:
    """Samples of ``call`` on the current stream; ``before`` each comes its preparation."""

    name = "cuda_events"

    def __init__(self, call: Callable[[], object], before: Callable[[], object]) -> None:
        self.clocks_mhz: list[float] = []  # events do not tell
        self._call, self._before = call, before
        self._pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(IN_FLIGHT)
        ]
        self._sample(*self._pairs[0], 0.0)  # the first call may load something
        torch.cuda.synchronize()
        self._submit_s = max(self._sample(*pair, 0.0) for pair in self._pairs[:3])

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            pairs, started = self._pairs[: count - len(times)], time.perf_counter()
            for start, end in pairs:
                self._sample(start, end, self._submit_s)
            torch.cuda.synchronize()
            busy_s = time.perf_counter() - started
            times += [start.elapsed_time(end) * 1e3 for start, end in pairs]
            rest(times[-1], busy_s, partial(self._sample, *pairs[0], self._submit_s))
        return times

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        yield tensors(self._call())

    def _sample(self, start: torch.cuda.Event, end: torch.cuda.Event, submit_s: float) -> float:
        """Seconds the host took to submit it, which was expected to take ``submit_s``."""
        self._before()
        torch.cuda._sleep(spin_cycles(submit_s))  # no kernel of ours: those need Triton
        started = time.perf_counter()
        start.record()
        self._call()
        end.record()
        return time.perf_counter() - started


class HostClock:
    """Samples of ``call``, launching included, the GPU idle before; ``before`` each comes its preparation."""

    name = "host_clock"

    def __init__(self, call: Callable[[], object], before: Callable[[], object]) -> None:
        self.clocks_mhz: list[float] = []  # the host does not know
        self.submitted_us: list[float] = []  # of each sample, the time until the caller could go on
        self._call, self._before = call, before

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        return [self._sample() for _ in range(count)]

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        result = tensors(self._call())
        torch.cuda.synchronize()
        yield result

    def _sample(self) -> float:
        self._before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        self._call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        self.submitted_us.append((returned - start) * 1e6)
        return (done - start) * 1e6


MOST = 50  # calls
LONGEST_S = 0.1  # spent on them, though never on fewer than FEWEST
FEWEST = 5


def as_seen_by_caller(call: Callable[[], object], before: Callable[[], object]) -> dict[str, Scalar]:
    """``host_us``: until ``call`` returns. ``latency_us``: until the GPU is done. The GPU is idle before."""
    clock = HostClock(call, before)
    done: list[float] = []
    began = time.perf_counter()
    while len(done) < MOST and (len(done) < FEWEST or time.perf_counter() - began < LONGEST_S):
        done += clock.samples(1)
    return {"host_us": trimmed_mean(clock.submitted_us), "latency_us": trimmed_mean(done)}


Instrument = GraphTimestamps | StreamTimestamps | CudaEvents | HostClock
