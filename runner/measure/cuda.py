"""``measure=benchmark`` on an NVIDIA GPU: which instrument, and what it says."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from models.workload import Call
from runner.case import Scalar
from runner.measure import calibration, witness
from runner.measure.benchmark import Benchmark
from runner.measure.caller import as_seen_by_caller
from runner.measure.events import CudaEvents
from runner.measure.flush import reading_flush
from runner.measure.gpu_state import gpu_state
from runner.measure.procedure import take
from runner.measure.slots import tick_ns
from runner.measure.stamped_graphs import CaptureError, StampedGraphs
from runner.measure.stamped_stream import StampedStream
from runner.measure.statistics import Floor, trimmed_mean

COARSEST_NS = 64  # step of the GPU's timer beyond which stamps are no better than events
WARM_CAPTURES, WARM_SAMPLES, WARM_LONGEST_S = 3, 90, 0.03

# Standard deviation between 16 processes on an H200, rounded up: what one process cannot see of its own error.
FLOORS = {
    "stamped_graphs": Floor(us=0.010, share=0.001),
    "stamped_stream": Floor(us=0.010, share=0.001),
    "cuda_events": Floor(us=0.10, share=0.0015),  # an offset of 50 to 150 ns, drawn anew at each capture
}

Instrument = StampedGraphs | StampedStream | CudaEvents


def measure(call: Call, settings: Benchmark) -> dict[str, Scalar]:
    """The columns of a call on the GPU: ``gpu_us`` with the L2 cache as ``settings`` say, and what else is known."""
    instrument, note = _choose(call, settings)
    taken = take(instrument, settings)
    columns = taken.columns("gpu_us", FLOORS[instrument.name]) | gpu_state()
    columns |= {"instrument": instrument.name, "instrument_note": note, "calls_per_sample": 1}
    if instrument.clocks_mhz:
        columns |= {
            "sm_clock_mhz": statistics.median(instrument.clocks_mhz),
            "unloaded_clock_mhz": calibration.unloaded_mhz(),
        }
    if isinstance(instrument, StampedGraphs) and settings.cold_l2:
        columns["gpu_warm_us"] = _warm_us(call, taken.summary.estimate)
    before = _before(call, settings.cold_l2)
    columns |= as_seen_by_caller(call.run, before)
    if settings.witness:
        columns |= _witnessed(call.run, before if call.reset or settings.cold_l2 else None)
    return columns


def _choose(call: Call, settings: Benchmark) -> tuple[Instrument, str]:
    """The best instrument that ``call`` and this GPU allow, or the one asked for; and why it is not the best."""
    asked, cold = settings.instrument, settings.cold_l2
    why_events = "" if asked == "cuda_events" else _no_stamps()
    if asked == "cuda_events" or why_events:
        return CudaEvents(call.run, call.reset, cold_l2=cold), why_events
    if asked == "stamped_stream":
        return _stream(call, cold), ""
    try:
        return _graphs(call, cold_l2=cold, captures=settings.captures), ""
    except CaptureError as error:
        return _stream(call, cold), f"no CUDA graph can hold this call: {error}"


def _no_stamps() -> str:
    """Why stamps cannot be had here; empty if they can."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "stamps are Triton kernels, and TRITON_INTERPRET=1 runs those on the CPU"
    tick = tick_ns()
    return f"this GPU's timer steps by {tick} ns: too coarse for stamps" if tick > COARSEST_NS else ""


def _graphs(call: Call, *, cold_l2: bool, captures: int) -> StampedGraphs:
    constant_us = calibration.graph_constant_us(cold_l2=cold_l2, captures=captures)
    return StampedGraphs(call.run, call.reset, cold_l2=cold_l2, captures=captures, constant_us=constant_us)


def _stream(call: Call, cold_l2: bool) -> StampedStream:
    return StampedStream(
        call.run, call.reset, cold_l2=cold_l2, constant_us=calibration.stream_constant_us(cold_l2=cold_l2)
    )


def _warm_us(call: Call, cold_us: float) -> float:
    """The time of the same call when the last one has left its data in the L2 cache."""
    warm = _graphs(call, cold_l2=False, captures=WARM_CAPTURES)
    warm.samples(WARM_CAPTURES)
    return trimmed_mean(warm.samples(max(5, min(WARM_SAMPLES, int(WARM_LONGEST_S / (cold_us * 1e-6))))))


def _before(call: Call, cold_l2: bool) -> Callable[[], None]:
    """What comes before each call where no instrument sees to it."""
    flush = reading_flush() if cold_l2 else lambda: None

    def both() -> None:
        call.restore()
        flush()

    return both


def _witnessed(run: Callable[[], object], before: Callable[[], object] | None) -> dict[str, Scalar]:
    """What CUPTI says of the same call, launched kernel by kernel."""
    seen = witness.observe(run, before)
    if seen is None:
        return {}
    return {"cupti_us": seen.span_us, "gap_us": seen.span_us - seen.busy_us, "n_kernels": seen.kernels}
