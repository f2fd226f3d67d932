"""Choice of the instrument that times a call on this GPU; CUDA events and the host's clock."""

from collections.abc import Callable
from functools import partial

import torch
from torch.cuda import synchronize

from ..records.debugging import interpreted
from . import calibration, ranks
from . import clock as time
from .call import Call
from .capture import CaptureError
from .cupti import CuptiTime
from .instrument import Instrument
from .nested import returned_tensors
from .preparation import BufferSets, preparation
from .procedure import rest
from .settings import TimingSettings
from .spot_checks import SpotChecks
from .timestamps import GraphTimestamps, StreamTimestamps, spin_cycles, tick_ns

COARSEST_NS = 64  # step of the GPU's timer; with a coarser timer, events are as good as timestamps


def choose(call: Call, settings: TimingSettings, buffer_sets: BufferSets | None = None) -> tuple[Instrument, str]:
    """Return the instrument for ``call``, and the reason if it is not the best instrument."""
    if settings.instrument != "auto":
        return build(settings.instrument, call, settings, buffer_sets=buffer_sets), ""
    if reason := no_timestamps():
        return build("cuda_events", call, settings), reason
    try:
        return build("graph_timestamps", call, settings, buffer_sets=buffer_sets), ""
    except CaptureError as error:
        reason, memory_is_short = str(error), isinstance(error.__cause__, torch.OutOfMemoryError)
    # Outside of the except clause, since the error keeps the captured graphs alive.
    if memory_is_short and buffer_sets is not None and len(buffer_sets) > 1:
        buffer_sets.free_copies()
        return choose(call, settings, buffer_sets)
    return build("stream_timestamps", call, settings), f"no CUDA graph can hold this call: {reason}"


DETACHED = "it leaves work on a stream that nobody waits for: timed by the host's clock, launching included"
LEFT_S = 30e-6  # shortest leftover work that is noticed
PAUSE_S = 1e-3  # in which leftover work goes on
LATE_S = 3e-4  # below PAUSE_S, since the work of others goes on as well


def leaves_work(call: Call) -> bool:
    """Return whether the GPU still works when the caller's stream has finished ``call``, without CUPTI.

    If so, a pause shortens the wait for the GPU. If not, the wait takes 10 us, and up to 0.5 us more for each kernel of
    the call, with or without a pause. Of several ranks, those after the first begin late, so that a collective that the
    first leaves is not over at once.
    """
    left = True

    def waited_s(pause_s: float) -> float:
        call.restore()
        synchronize()
        ranks.current.meet()
        if ranks.current.rank:
            time.sleep(LATE_S)
        call.run()
        torch.cuda.current_stream().synchronize()
        until = time.perf_counter() + pause_s
        while time.perf_counter() < until:
            pass
        started = time.perf_counter()
        synchronize()
        return time.perf_counter() - started

    for _ in range(5):
        left = waited_s(0) - waited_s(PAUSE_S) > LEFT_S and left
        if not ranks.current.any(left):
            return False
    return True


def corrected(
    instrument: Instrument, note: str, observed: CuptiTime, call: Call, settings: TimingSettings
) -> tuple[Instrument, str]:
    """Return ``instrument`` and ``note``, or others if it misses work that CUPTI saw in an ordinary call."""
    if observed.detached:
        return build("host_clock", call, settings), DETACHED
    if instrument.kernels is not None and instrument.kernels < observed.kernels:
        reason = f"its CUDA graph holds {instrument.kernels} of the {observed.kernels} kernels of a call"
        return build("stream_timestamps", call, settings), reason
    return instrument, note


def build(
    name: str, call: Call, settings: TimingSettings, *, buffer_sets: BufferSets | None = None, warm: bool = False
) -> Instrument:
    """Return the instrument ``name``; with ``warm`` it never flushes the L2 cache. Raises CaptureError."""
    cold, captures = settings.cold_l2 and not warm, settings.captures
    run, before = call.run, preparation(call.reset, cold_l2=cold)
    instrument: Instrument
    if name == "graph_timestamps":
        constant_us = partial(calibration.graph_constant_us, cold_l2=cold, captures=captures)
        constant_us()  # before the call is captured; called again for each series, since the offset may change
        instrument = GraphTimestamps(run, before, captures=captures, constant_us=constant_us, buffer_sets=buffer_sets)
    elif name == "stream_timestamps":
        instrument = StreamTimestamps(run, before, constant_us=calibration.stream_constant_us(cold_l2=cold))
    else:
        instrument = (CudaEvents if name == "cuda_events" else HostClock)(run, before)
    instrument.checks = SpotChecks(call.judge)
    return instrument


def no_timestamps() -> str:
    """Return the reason why timestamps are not available here, else ""."""
    if interpreted():
        return "timestamps are Triton kernels, and TRITON_INTERPRET=1 runs those on the CPU"
    tick = tick_ns()
    return f"this GPU's timer steps by {tick:g} ns: too coarse for timestamps" if tick > COARSEST_NS else ""


IN_FLIGHT = 50  # samples queued between two synchronizations: the host stays ahead, the queue stays short


class CudaEvents(Instrument):
    """Times between two CUDA events on the current stream. A spin before each call hides the launching."""

    name, round_size = "cuda_events", IN_FLIGHT

    def __init__(self, run: Callable[[], object], before: Callable[[], object]) -> None:
        super().__init__(run, before)
        self._pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(IN_FLIGHT)
        ]
        self._sample(*self._pairs[0], 0.0)  # the first call may load something
        synchronize()
        self._submit_s = max(self._sample(*pair, 0.0) for pair in self._pairs[:3])

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times of one call, in us."""
        times: list[float] = []
        while len(times) < count:
            pairs, started = self._pairs[: count - len(times)], time.perf_counter()
            for start, end in pairs:
                self._sample(start, end, self._submit_s)
            synchronize()
            if self.checks.due():
                self.checks.judge(lambda: returned_tensors(self._kept))
            busy_s = time.perf_counter() - started
            times += self.slowest([start.elapsed_time(end) * 1e3 for start, end in pairs])
            rest(times[-1], busy_s, partial(self._sample, *pairs[0], self._submit_s))
        self._kept = None
        return times

    def _sample(self, start: torch.cuda.Event, end: torch.cuda.Event, submit_s: float) -> float:
        """Submit one call behind a spin that hides ``submit_s`` seconds; return the seconds of the submission."""
        self._kept = None  # its memory serves this call
        self._before()
        torch.cuda._sleep(spin_cycles(submit_s))  # our own spin would need Triton
        started = time.perf_counter()
        ranks.current.align()
        start.record()
        self._kept = self._run()
        end.record()
        return time.perf_counter() - started


class HostClock(Instrument):
    """Times of single calls by the host's clock, launching included. The GPU is idle before each."""

    name = "host_clock"

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times of one call, in us."""
        times: list[float] = []
        for _ in range(count):
            kept = self.checks.due()
            self._before()
            synchronize()
            ranks.current.meet()
            start = time.perf_counter()
            result = self._run()
            if not kept:
                del result
            synchronize()
            times += self.slowest([(time.perf_counter() - start) * 1e6])
            if kept:
                self.checks.judge(partial(returned_tensors, result))
        return times
