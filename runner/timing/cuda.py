"""The measurement of a call on an NVIDIA GPU by ``measure=benchmark``."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from ..device.identity import separate_pct
from ..records.case import Scalar
from ..records.debugging import interpreted
from . import calibration, cupti, instruments, measured_peak, ranks
from .calibration import undisturbed
from .call import Batches, Call
from .capture import CaptureError, per_gpu
from .gpu_state import gpu_state, sustained
from .instrument import Instrument
from .instruments import HostClock
from .latency import judge_in_a_row, latency_columns
from .preparation import BufferSets, preparation
from .procedure import Taken, paired_rounds, race, take
from .settings import TimingSettings
from .statistics import FLOORS, trimmed_mean
from .timestamps import GraphTimestamps, tick_ns, timestamp_buffer

WARM_SAMPLES, WARM_LONGEST_S = 90, 0.03


@per_gpu
def warm_up(cupti_too: bool = True) -> None:
    """Start CUDA and CUPTI, and compile or load our own kernels, once per process, before anything is timed.

    A graph that was captured before CUPTI started reads less afterwards: 0.65 us less for a spin of 5 us on an H200.
    Without ``cupti_too``, CUPTI is not started, since it slows launches in the rest of the process.
    """
    if interpreted():  # CUDA events need no preparation
        return
    timestamp_buffer(1).begin(0)
    before = preparation(None, cold_l2=True)
    if cupti_too:
        cupti.observe(calibration.launch_empty, before, calls=2)
    tick_ns()


def prepare(settings: TimingSettings) -> None:
    """Measure once per process: the timer offset, the unloaded clock, and the measured peak."""
    warm_up()
    if settings.instrument in ("auto", GraphTimestamps.name) and not instruments.no_timestamps():
        for cold_l2 in {settings.cold_l2, False}:
            calibration.graph_constant_us(cold_l2=cold_l2, captures=settings.captures)
        calibration.unloaded_mhz(rested=True)
    if settings.measured_peak:
        measured_peak.measured_peak()


def measure(call: Call, settings: TimingSettings) -> tuple[dict[str, Scalar], Taken, Instrument]:
    """Return the columns of ``call``, with the series and the instrument behind ``gpu_us``."""
    warm_up() if settings.cupti_check else warm_up(False)
    before = preparation(call.reset, cold_l2=settings.cold_l2)
    together = ranks.current.count > 1
    # Memory that is registered with other GPUs cannot move.
    buffer_sets = BufferSets(call.inputs, 1 if together else settings.buffer_sets)
    # Before graphs hold NCCL calls: an all_reduce of 1 MiB took 63 us back to back with such graphs, and 50 without.
    latency = latency_columns(call, settings.max_s) if together and not settings.race else {}
    instrument, note = instruments.choose(call, settings, buffer_sets)
    # The interpreter has no kernels for CUPTI; and the number of calls that CUPTI sees may differ between ranks.
    check = settings.cupti_check and not interpreted() and not together
    observed = cupti.observe(call.run, before, kernels=instrument.kernels) if check else None
    if observed:
        instrument, note = instruments.corrected(instrument, note, observed, call, settings)
    elif (together or not settings.cupti_check) and "timestamps" in instrument.name and instruments.leaves_work(call):
        instrument, note = instruments.build("host_clock", call, settings), instruments.DETACHED
    series, drift_us = undisturbed(lambda: take(instrument, settings), [instrument], cold_l2=settings.cold_l2)
    columns = series.columns("gpu_us", FLOORS[instrument.name]) | gpu_state()
    columns |= {"instrument": instrument.name, "instrument_note": note, "calls_per_sample": 1}
    columns |= calibration.unknown_offset(columns) | {"separate_pct": separate_pct("cuda")}
    if isinstance(instrument, GraphTimestamps):
        columns |= {"buffer_sets": min(len(buffer_sets), settings.captures), "timer_drift_us": drift_us}
    columns |= ranks.columns(instrument.spreads_us)
    if observed:
        columns |= {
            "cupti_us": observed.span_us,
            "gap_us": observed.span_us - observed.busy_us,
            "n_kernels": observed.kernels,
        }
    elif instrument.kernels is not None:
        columns["n_kernels"] = instrument.kernels
    if instrument.clocks_mhz:
        columns |= {
            "sm_clock_mhz": statistics.median(instrument.clocks_mhz[-series.summary.count :]),  # without the warm-up
            "unloaded_clock_mhz": calibration.unloaded_mhz(),
            "empty_kernel_us": calibration.empty_kernel_us(),
        }
    if isinstance(instrument, GraphTimestamps) and settings.cold_l2 and not settings.race:
        columns |= warm_columns(call, settings, buffer_sets, series.summary.estimate)
    if not settings.race:
        columns |= latency or latency_columns(call, settings.max_s)  # late, since it could heat the GPU
        judge_in_a_row(call, instrument.checks)
    # Work on a stream that nobody waits for would pile up.
    if settings.sustained_s and not isinstance(instrument, HostClock):
        columns |= sustained(call, settings.sustained_s, in_graph=isinstance(instrument, GraphTimestamps))
    if settings.measured_peak and call.work:
        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        with suppress(torch.cuda.OutOfMemoryError):  # memory may be too short to measure the peak
            peak = measured_peak.measured_peak()
            columns |= measured_peak.columns(call.work, series.summary.estimate, peak, l2_bytes, settings.cold_l2)
    return columns, series, instrument


def compare(calls: Sequence[tuple[Call, Mapping[str, Scalar]]], settings: TimingSettings) -> list[Batches] | None:
    """Sample ``calls`` in paired rounds, each by the instrument that has timed it, in the same buffer sets."""
    counts = [int(count) for _, columns in calls if (count := columns.get("buffer_sets"))]  # fewer if memory was short
    inputs = {id(tensor): tensor for call, _ in calls for tensor in call.inputs}  # most calls share their inputs
    buffer_sets = BufferSets(list(inputs.values()), min(counts, default=settings.buffer_sets))
    used = [
        instruments.build(str(columns["instrument"]), call, settings, buffer_sets=buffer_sets)
        for call, columns in calls
    ]
    sample = race if settings.race else paired_rounds
    rounds, max_s, target_pct = settings.paired_rounds, settings.max_s, settings.target_pct
    return undisturbed(lambda: sample(used, rounds, max_s, target_pct), used, cold_l2=settings.cold_l2)[0]


def warm_columns(call: Call, settings: TimingSettings, buffer_sets: BufferSets, cold_us: float) -> dict[str, Scalar]:
    """Return the time of the call with the data of the previous call in the L2 cache, in one buffer set."""
    try:
        warm = instruments.build("graph_timestamps", call, settings, buffer_sets=buffer_sets.first(), warm=True)
    except CaptureError:  # memory may not suffice for these graphs too
        return {}
    warm.samples(1)
    count = max(5, min(WARM_SAMPLES, int(WARM_LONGEST_S / (cold_us * 1e-6))))
    return {"gpu_warm_us": trimmed_mean(warm.samples(count))}
