"""Which instrument times a call on this GPU: the best that the call and the GPU allow, or the one asked for."""

from __future__ import annotations

import torch

from runner.experiment.debug import interpreted
from runner.measure.benchmark import Benchmark
from runner.models.workload import Call
from runner.timing import calibration
from runner.timing.buffer_sets import BufferSets
from runner.timing.capture import CaptureError
from runner.timing.cupti import CuptiTime
from runner.timing.events import CudaEvents
from runner.timing.flush import preparation
from runner.timing.graph_timestamps import GraphTimestamps
from runner.timing.host_clock import HostClock
from runner.timing.stream_timestamps import StreamTimestamps
from runner.timing.timestamp_buffer import tick_ns

COARSEST_NS = 64  # step of the GPU's timer beyond which timestamps are no better than events
NOT_WAITED_FOR = "it leaves work on a stream that nobody waits for: timed by the host's clock, launching included"

Instrument = GraphTimestamps | StreamTimestamps | CudaEvents | HostClock


def choose(call: Call, settings: Benchmark, buffer_sets: BufferSets | None = None) -> tuple[Instrument, str]:
    """The instrument of ``call``, and why it is not the best one; empty if it is."""
    if settings.instrument != "auto":
        return build(settings.instrument, call, settings, buffer_sets=buffer_sets), ""
    if why := no_timestamps():
        return build("cuda_events", call, settings), why
    try:
        return _graphs(call, settings, buffer_sets), ""
    except CaptureError as error:
        return build("stream_timestamps", call, settings), f"no CUDA graph can hold this call: {error}"


def _graphs(call: Call, settings: Benchmark, buffer_sets: BufferSets | None) -> Instrument:
    """Graphs; in the first of ``buffer_sets`` alone where the outputs of all of them do not fit. Raises CaptureError."""
    try:
        return build("graph_timestamps", call, settings, buffer_sets=buffer_sets)
    except CaptureError as error:
        if buffer_sets is None or len(buffer_sets) == 1 or not isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
    buffer_sets.leave()  # out here the error no longer holds what was built
    return build("graph_timestamps", call, settings, buffer_sets=buffer_sets)


def corrected(
    instrument: Instrument, note: str, seen: CuptiTime | None, call: Call, settings: Benchmark
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
    name: str, call: Call, settings: Benchmark, *, buffer_sets: BufferSets | None = None, warm: bool = False
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
