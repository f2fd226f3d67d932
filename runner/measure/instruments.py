"""Which instrument times a call on this GPU: the best that the call and the GPU allow, or the one asked for."""

from __future__ import annotations

import torch

from models.workload import Call
from runner.capture import CaptureError
from runner.debug import interpreted
from runner.measure import calibration
from runner.measure.benchmark import Benchmark
from runner.measure.events import CudaEvents
from runner.measure.flush import preparation
from runner.measure.host_clock import HostClock
from runner.measure.places import Places
from runner.measure.slots import tick_ns
from runner.measure.stamped_graphs import StampedGraphs
from runner.measure.stamped_stream import StampedStream
from runner.measure.witness import Witness

COARSEST_NS = 64  # step of the GPU's timer beyond which stamps are no better than events
NOT_WAITED_FOR = "it leaves work on a stream that nobody waits for: timed by the host's clock, launching included"

Instrument = StampedGraphs | StampedStream | CudaEvents | HostClock


def choose(call: Call, settings: Benchmark, places: Places | None = None) -> tuple[Instrument, str]:
    """The instrument of ``call``, and why it is not the best one; empty if it is."""
    if settings.instrument != "auto":
        return build(settings.instrument, call, settings, places=places), ""
    if why := no_stamps():
        return build("cuda_events", call, settings), why
    try:
        return _graphs(call, settings, places), ""
    except CaptureError as error:
        return build("stamped_stream", call, settings), f"no CUDA graph can hold this call: {error}"


def _graphs(call: Call, settings: Benchmark, places: Places | None) -> Instrument:
    """Graphs; in the first of ``places`` alone where the outputs of all of them do not fit. Raises CaptureError."""
    try:
        return build("stamped_graphs", call, settings, places=places)
    except CaptureError as error:
        if places is None or len(places) == 1 or not isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
    places.leave()  # out here the error no longer holds what was built
    return build("stamped_graphs", call, settings, places=places)


def corrected(
    instrument: Instrument, note: str, seen: Witness | None, call: Call, settings: Benchmark
) -> tuple[Instrument, str]:
    """The same, after CUPTI has been asked what an ordinary call does."""
    if seen is None:
        return instrument, note
    if seen.detached:
        return build("host_clock", call, settings), NOT_WAITED_FOR
    if (held := nodes(instrument)) is not None and held < seen.kernels:
        missing = f"its CUDA graph holds {held} of the {seen.kernels} kernels of a call"
        return build("stamped_stream", call, settings), missing
    return instrument, note


def nodes(instrument: Instrument) -> int | None:
    """Kernels, copies and fills of a call in the graph that is timed; None if there is none, or it is not known."""
    return instrument.contents.work if isinstance(instrument, StampedGraphs) and instrument.contents else None


def build(
    name: str, call: Call, settings: Benchmark, *, places: Places | None = None, warm: bool = False
) -> Instrument:
    """The instrument called ``name``; ``warm``: without a flush, whatever ``settings`` say. Raises CaptureError."""
    cold = settings.cold_l2 and not warm
    before = preparation(call.reset, cold_l2=cold)
    if name == "stamped_graphs":
        constant_us = calibration.graph_constant_us(cold_l2=cold, captures=settings.captures)
        return StampedGraphs(call.run, before, captures=settings.captures, constant_us=constant_us, places=places)
    if name == "stamped_stream":
        return StampedStream(call.run, before, constant_us=calibration.stream_constant_us(cold_l2=cold))
    kind = CudaEvents if name == "cuda_events" else HostClock
    return kind(call.run, before)


def no_stamps() -> str:
    """Why stamps cannot be had here; empty if they can."""
    if interpreted():
        return "stamps are Triton kernels, and TRITON_INTERPRET=1 runs those on the CPU"
    tick = tick_ns()
    return f"this GPU's timer steps by {tick:g} ns: too coarse for stamps" if tick > COARSEST_NS else ""
