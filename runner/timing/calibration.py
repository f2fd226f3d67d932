"""Timer offset of each instrument, which is subtracted from its samples; its drift; and the unloaded clock.

They are measured once per process, or taken over from an earlier process of the run: such offsets differ by 2 ns.
"""

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..device.cache import cache_file, read_record, write_record
from ..device.identity import identity
from ..records.case import Scalar
from . import clock as time
from . import cupti, ranks
from .capture import per_gpu, plain_mode
from .gpu_kernels import null, spin
from .instrument import Instrument
from .instrument import calibrations as known
from .preparation import preparation
from .statistics import trimmed_mean
from .timestamps import GraphTimestamps, StreamTimestamps
from .verdict import MOST_DRIFT_US, SLOWED

SAMPLES = 2000  # 0.1 s; with 400, the mean differed by 6 ns between processes
WARMUP = 100
CUPTI_CALLS = 400  # calls of an empty kernel that CUPTI observes
CUPTI_RUNS = 5  # the median of these is kept, once per machine
FORMAT = 1  # format of the file in the cache folder
COOLING_S = 0.2  # until the clock recovers after work at the power limit
SPIN_CYCLES = 20_000  # about 10 us of one warp, too little for a power limit to act


def _on_gpu(name: str) -> str:
    """Return ``name`` with the index of the current GPU if it is not 0. In a worker it is always 0."""
    gpu = torch.cuda.current_device()
    return f"{name}@{gpu}" if gpu else name


def _once(name: str, measure: Callable[[], float]) -> float:
    name = _on_gpu(name)
    if name not in known:
        with ranks.alone():
            known[name] = measure()
    return known[name]


def graph_constant_us(*, cold_l2: bool, captures: int) -> float:
    """Return the offset of ``GraphTimestamps`` in us; less it, an empty kernel reads as CUPTI measures it."""
    name = f"graphs_{captures}_{'cold' if cold_l2 else 'warm'}_us"
    empty_us = empty_kernel_us()  # first: graphs captured before CUPTI starts read less afterwards
    return _once(name, lambda: _reading_us(empty_graphs(cold_l2=cold_l2, captures=captures))) - empty_us


def stream_constant_us(*, cold_l2: bool) -> float:
    """Return the offset of ``StreamTimestamps`` in us."""
    name, before = f"stream_{'cold' if cold_l2 else 'warm'}_us", preparation(None, cold_l2=cold_l2)
    empty_us = empty_kernel_us()
    return _once(name, lambda: _reading_us(StreamTimestamps(launch_empty, before, constant_us=0.0))) - empty_us


def _reading_us(instrument: Instrument) -> float:
    with plain_mode():
        instrument.samples(WARMUP)
        return trimmed_mean(instrument.samples(SAMPLES))


def empty_kernel_us() -> float:
    """Return CUPTI's time of an empty kernel with a cold cache, in us; 0 if CUPTI is not available.

    It is measured once per machine and kept, since it is part of all times and varies by some ns between measurements.
    It is ``ASSUMED_US`` if it is not kept and a profiler that is attached to this process occupies CUPTI.
    """
    return ASSUMED_US if empty_kernel_is_assumed() else _once("empty_kernel_us", _empty_kernel_us)


ASSUMED_US, ASSUMED_ERROR_US = 1.0, 0.5  # 0.6 to 0.9 us on an H100 or H200; unknown on other GPUs


def empty_kernel_is_assumed() -> bool:
    """Return whether the time of an empty kernel is unknown here, and a profiler occupies CUPTI."""
    if _on_gpu("empty_kernel_us") in known or not profiler_attached():
        return False
    return read_record(cache_file("null", identity(), FORMAT)) is None


def unknown_offset(columns: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the columns of an interval that includes the unknown time of an empty kernel, with a note.

    It is known, and nothing is returned, unless CUPTI is missing or occupied.
    """
    if "timestamps" not in str(columns["instrument"]):
        return {}
    if empty_kernel_is_assumed():
        reason, error_us = "a profiler is attached", ASSUMED_ERROR_US
    elif empty_kernel_us() == 0:
        reason, error_us = "CUPTI is not available", ASSUMED_US + ASSUMED_ERROR_US
    else:
        return {}
    us = columns["gpu_us"]
    half_us = math.hypot(columns["high_us"] - us, error_us)
    note = f"the time of an empty kernel is not known here, since {reason}: the interval is wider"
    return {
        "low_us": max(0.0, us - half_us),
        "high_us": us + half_us,
        "interval_pct": 100 * half_us / us if us > 0 else None,
        "instrument_note": "; ".join(filter(None, [columns["instrument_note"], note])),
    }


def profiler_attached() -> bool:
    """Return whether torch's profiler records now, or Nsight has started this process."""
    names = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NV_NSIGHT_INJECTION_PORT_BASE")
    recording = torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled
    return bool(recording) or any(os.environ.get(name) for name in names)


def _empty_kernel_us() -> float:
    facts = identity()
    path = cache_file("null", facts, FORMAT)
    kept = (read_record(path) or {}).get("empty_kernel_us")
    if isinstance(kept, float):
        return kept
    before = preparation(None, cold_l2=True)
    times = [cupti.observe(launch_empty, before, calls=CUPTI_CALLS) for _ in range(CUPTI_RUNS)]
    spans = [observed.span_us for observed in times if observed]
    if not spans:
        return 0.0
    write_record(path, {"identity": facts, "empty_kernel_us": statistics.median(spans)})
    return statistics.median(spans)


def unloaded_mhz(*, rested: bool = False) -> float:
    """Return the clock of the multiprocessors almost without load in MHz, which shows if a power limit has acted.

    ``rested``: this process has not put load on the GPU yet, so it need not cool down.
    """
    return _once("unloaded_mhz", lambda: measure_unloaded_mhz(0.0 if rested else COOLING_S))


def measure_unloaded_mhz(cooling_s: float = COOLING_S) -> float:
    """Wait for ``cooling_s`` seconds, then measure the clock in MHz."""
    torch.cuda.synchronize()
    time.sleep(cooling_s)
    before = preparation(None, cold_l2=False)
    with plain_mode():
        spins = GraphTimestamps(lambda: spin[(1,)](SPIN_CYCLES, num_warps=1), before, captures=1, constant_us=0.0)
        spins.samples(20)
    return statistics.median(spins.clocks_mhz)


def launch_empty() -> None:
    """Launch an empty kernel."""
    null[(1,)](num_warps=1)


CAPTURES = 20  # the default of ``measure.benchmark.captures``, whose offset is known already
OFFSET_SAMPLES = 20  # half a millisecond, after each series
TRIES = 3
MOST = 8  # times CAPTURES: limit of ``settle``; where captures were needed, some tens of them were enough

Result = TypeVar("Result")


def undisturbed(
    take: Callable[[], Result], instruments: Sequence[Instrument], *, cold_l2: bool = True
) -> tuple[Result, float]:
    """Return the result of ``take`` and the drift of the timer offset in us. Repeat ``take`` if the offset has moved.

    While another process creates or destroys its context on this GPU, the kernels of a graph follow each other sooner.
    An offset from such a time is too short and is measured again, as it is if CUPTI has been started since. The drift
    is 0 without graphs among ``instruments``, those that ``take`` uses; with ``cold_l2`` they flush the L2 cache before
    each sample.
    """
    if not any(isinstance(instrument, GraphTimestamps) for instrument in instruments):
        return take(), 0.0
    for _ in range(TRIES - 1):
        result, drift_us = take(), shift_us(cold_l2=cold_l2)
        moved = _has_moved(drift_us, cold_l2)
        if not ranks.current.any(moved):
            return result, drift_us
        if moved and (drift_us > 0 or not settle(cold_l2=cold_l2)):
            _forget_graphs()
    return take(), shift_us(cold_l2=cold_l2)


@ranks.alone()
def shift_us(*, cold_l2: bool = True) -> float:
    """Return the time of an empty kernel now less its time at calibration, in us."""
    then_us = graph_constant_us(cold_l2=cold_l2, captures=CAPTURES) + empty_kernel_us()
    graphs = _reference_graphs(cold_l2=cold_l2)
    graphs.samples(OFFSET_SAMPLES)  # after other work, the first replay of a graph takes up to 0.35 us longer
    return trimmed_mean(graphs.samples(OFFSET_SAMPLES)) - then_us


def _has_moved(drift_us: float, cold_l2: bool) -> bool:
    """Return whether a drift of ``drift_us`` means that the offset has changed.

    A positive drift may come from a lower clock, at which an empty kernel takes longer.
    """
    if drift_us <= MOST_DRIFT_US:
        return drift_us < -MOST_DRIFT_US
    clock_mhz = statistics.median(_reference_graphs(cold_l2=cold_l2).clocks_mhz[-OFFSET_SAMPLES:])
    return clock_mhz >= SLOWED * unloaded_mhz()


@ranks.alone()
def settle(*, cold_l2: bool = True) -> bool:
    """Capture graphs until the timer offset is as before, and return whether it is.

    The offset returns to its value once the driver has allocated memory for new graphs.
    """
    held: list[GraphTimestamps] = []
    while shift_us(cold_l2=cold_l2) <= -MOST_DRIFT_US:
        if len(held) == MOST:
            return False
        held.append(empty_graphs())
        held[-1].samples(CAPTURES)
    return True


def _forget_graphs() -> None:
    for name in [name for name in known if name.startswith("graphs_")]:
        del known[name]
    _reference_graphs.cache_clear()


def empty_graphs(*, cold_l2: bool = False, captures: int = CAPTURES) -> GraphTimestamps:
    """Return graphs of an empty kernel, without an offset subtracted."""
    return GraphTimestamps(launch_empty, preparation(None, cold_l2=cold_l2), captures=captures, constant_us=0.0)


_reference_graphs = per_gpu(empty_graphs)
