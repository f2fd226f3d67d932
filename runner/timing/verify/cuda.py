"""The checks on a GPU: kernels of known length, timestamps against CUPTI, equal calls, slowdowns, L2 and zeros."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from .. import calibration, instruments
from ..call import Call
from ..gpu_kernels import spin
from ..preparation import reading_flush
from ..procedure import take
from ..statistics import FLOORS, trimmed_mean
from ..timestamps import GraphTimestamps
from . import checks
from .checks import Check, SelfTest, Settings

SPINS_US = (1.0, 5.0, 20.0, 100.0, 500.0)
SPIN_US, SPIN_SHARE = 0.3, 0.005  # error allowed, the larger of the two

SIZES_LOG2 = (10, 14, 18, 20, 22, 24, 26)  # elements
CUPTI_US, CUPTI_SHARE = 0.35, 0.01  # difference from CUPTI allowed, the larger of the two
STREAM_US = 2 * FLOORS["stream_timestamps"].us  # for timestamps on a stream, whose interval includes it
EVENT_SAMPLES = 100

SAME_LOG2, SAME_EACH, SAME_MOST = (22, 24), 10, 1  # pairs of each size; how many may be called different in all
APART_PCT = 3.0  # most that two separate times may differ
SLOWED = ((5.0, 0.02), (17.0, 0.01), (450.0, 0.01))  # us, and the share by which it is made longer
SLOWED_PAIRS, SLOWED_LEAST = 10, 9
PAIR_S = 0.15  # for one side of a pair; otherwise pairs of 450 us would take a third of all the time

COLD_LOG2 = 22
FLUSHES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # sizes of the L2 cache
COLD_SHARE, WARM_SHARE = 0.01, 0.05

SMALL, LARGE, QUICK_US = 4096, 8192, 500.0  # sizes of a matrix; LARGE if SMALL takes less than QUICK_US
RANDOM_SHARE = 0.01


def spins(settings: Settings) -> list[Check]:
    """Time one warp that counts cycles."""
    mhz, findings = calibration.unloaded_mhz(), []
    for us in SPINS_US:
        cycles = round(us * mhz)
        row: Mapping[str, Any] = settings.time(_spinning(cycles), "cuda")
        body_us = cycles / row.get("sm_clock_mhz", mhz)
        findings.append(known_length(us, row["gpu_us"], body_us + calibration.empty_kernel_us()))
    return findings


def known_length(us: float, read_us: float, true_us: float) -> Check:
    """Check the time of a spin of about ``us``, which takes ``true_us`` with its launch."""
    allowed_us = max(SPIN_US, SPIN_SHARE * true_us)
    text = f"{read_us:.2f} us where {true_us:.2f} us is right ({read_us - true_us:+.2f} us)"
    bar = f"within {SPIN_US:g} us or {100 * SPIN_SHARE:g} %"
    return Check(f"spin of {us:g} us", text, bar, abs(read_us - true_us) <= allowed_us)


def methods(settings: Settings) -> list[Check]:
    """Time GELU by every method."""
    findings = []
    for log2 in SIZES_LOG2:
        call = checks.gelu(2**log2, "cuda")
        graphs = replace(settings, instrument="graph_timestamps").time(call, "cuda")
        stream = replace(settings, instrument="stream_timestamps").time(call, "cuda")
        events_us = trimmed_mean(instruments.build("cuda_events", call, settings).samples(EVENT_SAMPLES))
        findings.append(against_cupti(log2, graphs, stream, events_us))
    return findings


def against_cupti(log2: int, graphs: Mapping[str, Any], stream: Mapping[str, Any], events_us: float) -> Check:
    """Check the rows of one call by two instruments against CUPTI's time in both."""
    name = f"gelu 2^{log2}"
    bar = f"graphs within {CUPTI_US:g} us, stream {STREAM_US:g} us, or {100 * CUPTI_SHARE:g} %"
    cupti_times = [float(row["cupti_us"]) for row in (graphs, stream) if "cupti_us" in row]
    if not cupti_times:
        return Check(name, "CUPTI is not available here", bar, passed=False)
    cupti_us = fmean(cupti_times)
    off = {"graphs": graphs["gpu_us"] - cupti_us, "stream": stream["gpu_us"] - cupti_us}
    shown = off | {"events": events_us - cupti_us, "wall clock": graphs["latency_us"] - cupti_us}
    text = f"CUPTI {cupti_us:.2f} us; " + ", ".join(f"{method} {us:+.2f}" for method, us in shown.items())
    allowed_us = {"graphs": CUPTI_US, "stream": STREAM_US}
    near = all(abs(us) <= max(allowed_us[method], CUPTI_SHARE * cupti_us) for method, us in off.items())
    return Check(name, text, bar, near)


def same(settings: Settings) -> list[Check]:
    """Compare calls with themselves. Each call has other buffers."""
    calls = [checks.gelu(2**log2, "cuda") for log2 in SAME_LOG2 for _ in range(SAME_EACH)]
    instrument = instruments.choose(calls[0], settings)[0].name
    pairs = [checks.compared(settings, "cuda", call, call, instrument) for call in calls]
    name = "A/A, gelu " + " and ".join(f"2^{log2}" for log2 in SAME_LOG2)
    return [checks.alike(name, pairs, SAME_MOST), checks.sure(name, pairs)]


def series(settings: Settings) -> list[Check]:
    """Time GELU of two sizes in fresh processes."""
    processes = checks.in_processes(settings, "cuda", [2**log2 for log2 in SAME_LOG2])
    name = "gelu " + " and ".join(f"2^{log2}" for log2 in SAME_LOG2)
    return [checks.separate(f"{name}: separate times", processes, APART_PCT, checks.earlier("cuda"))]


def slowed(settings: Settings) -> list[Check]:
    """Compare a spin with a longer one, launch included."""
    mhz, empty_kernel_us = calibration.unloaded_mhz(), calibration.empty_kernel_us()
    quick, findings = replace(settings, max_s=min(settings.max_s, PAIR_S)), []
    for us, share in SLOWED:
        short, long = (_spinning(round((whole_us - empty_kernel_us) * mhz)) for whole_us in (us, us * (1 + share)))
        instrument = instruments.choose(short, settings)[0].name
        pairs = [checks.compared(quick, "cuda", long, short, instrument) for _ in range(SLOWED_PAIRS)]
        findings.append(checks.slower(f"spin of {us:g} us", pairs, share, SLOWED_LEAST))
    return findings


def coldness(settings: Settings) -> list[Check]:
    """Time the same call after flushes of all sizes. Large flushes must not differ."""
    run, times_us = checks.gelu(2**COLD_LOG2, "cuda").run, {}
    for factor in FLUSHES:
        constant_us = calibration.graph_constant_us(cold_l2=factor > 0, captures=settings.captures)
        before = reading_flush(factor) if factor else lambda: None
        instrument = GraphTimestamps(run, before, captures=settings.captures, constant_us=constant_us)
        times_us[factor] = take(instrument, settings).summary.estimate
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return swept(times_us, fits=l2_bytes >= 2 * 4 * 2**COLD_LOG2)


def swept(times_us: Mapping[float, float], *, fits: bool) -> list[Check]:
    """Check the times after each flush. ``fits``: the L2 cache holds all data of the call."""
    most, next_to_it, none = times_us[4.0], times_us[2.0], times_us[0.0]
    apart = next_to_it / most - 1
    name, series = f"gelu 2^{COLD_LOG2}", ", ".join(f"{factor:g}: {us:.2f}" for factor, us in times_us.items())
    cold = Check(
        f"{name}, L2 flushed",
        f"after 2 L2 {100 * apart:+.2f} % compared with 4 (us by flush: {series})",
        f"within {100 * COLD_SHARE:g} %",
        abs(apart) <= COLD_SHARE,
    )
    faster = 1 - none / next_to_it
    text = f"{100 * faster:.1f} % faster" + ("" if fits else "; does not fit")
    bar = f"at least {100 * WARM_SHARE:g} % faster" + ("" if fits else " where the L2 holds its data")
    return [cold, Check(f"{name}, L2 warm", text, bar, not fits or faster >= WARM_SHARE)]


def zeros(settings: Settings) -> list[Check]:
    """Time a matrix product, which depends on the values where power limits it."""
    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    small = _matmul(SMALL, dtype, torch.randn)
    size = LARGE if min(instruments.build("host_clock", small, settings).samples(5)) < QUICK_US else SMALL
    rows: list[Mapping[str, Any]] = [
        settings.time(_matmul(size, dtype, fill), "cuda") for fill in (torch.randn, torch.zeros)
    ]
    name = f"matmul {size}, {str(dtype).removeprefix('torch.')}"
    return [against_zeros(name, rows[0]["gpu_us"], rows[1]["gpu_us"])]


def against_zeros(name: str, random_us: float, zeros_us: float) -> Check:
    """Check that random numbers are not multiplied faster than zeros."""
    ratio = random_us / zeros_us
    text = f"random {random_us:.1f} us, zeros {zeros_us:.1f} us: {ratio:.3f} times as long"
    return Check(name, text, f"at least {1 - RANDOM_SHARE:g}", ratio >= 1 - RANDOM_SHARE)


def _spinning(cycles: int) -> Call:
    def run() -> tuple[Tensor, ...]:
        spin[(1,)](cycles, num_warps=1)
        return ()

    return Call(run)


def _matmul(size: int, dtype: torch.dtype, fill: Callable[..., Tensor]) -> Call:
    a, b = (fill(size, size, dtype=dtype, device="cuda") for _ in range(2))
    c = torch.empty_like(a)
    return Call(lambda: (torch.mm(a, b, out=c),))


CHECKS: Mapping[str, SelfTest] = {
    "spins of known length": spins,
    "timestamps against CUPTI": methods,
    "equal calls": same,
    "injected slowdowns": slowed,
    "coldness": coldness,
    "zeros against random": zeros,
    "separate times": series,  # last: other processes on the GPU may shift the timer offset of this process
}
