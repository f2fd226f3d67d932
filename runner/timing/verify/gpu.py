"""Checks on a GPU: kernels of known length, CUPTI beside the timestamps, and calls that are equal or are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from runner.timing import Call, TimingSettings, calibration, instruments
from runner.timing.gpu_kernels import spin
from runner.timing.preparation import reading_flush
from runner.timing.procedure import take
from runner.timing.statistics import FLOORS, trimmed_mean
from runner.timing.timestamps import GraphTimestamps
from runner.timing.verify import Check, Finding, alike, compared, slower, sure

GELU: Any = torch._C._nn.gelu  # takes a buffer for its output, as torch.nn.functional.gelu does not

SPINS_US = (1.0, 5.0, 20.0, 100.0, 500.0)
SPIN_US, SPIN_SHARE = 0.3, 0.005  # off what is known, the larger of the two

SIZES_LOG2 = (10, 14, 18, 20, 22, 24, 26)  # elements
CUPTI_US, CUPTI_SHARE = 0.35, 0.01  # off CUPTI, the larger of the two
STREAM_US = 2 * FLOORS["stream_timestamps"].us  # what its interval allows it
EVENT_SAMPLES = 100

SAME_LOG2, SAME_EACH, SAME_MOST = (22, 24), 10, 1  # pairs of each size; of all, that may be called different
SLOWED = ((5.0, 0.02), (17.0, 0.01), (450.0, 0.01))  # us, and the share by which it is made longer
SLOWED_PAIRS, SLOWED_LEAST = 10, 9
PAIR_S = 0.15  # longest for one side of a pair, or those of 450 us would take a third of all the time

COLD_LOG2 = 22
FLUSHES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # sizes of the L2 cache
COLD_SHARE, WARM_SHARE = 0.01, 0.05

SMALL, LARGE, QUICK_US = 4096, 8192, 500.0  # sizes of a matrix; the large one where the small one is quick
RANDOM_SHARE = 0.01


def spins(settings: TimingSettings) -> list[Finding]:
    """One warp that counts cycles."""
    mhz, findings = calibration.unloaded_mhz(), []
    for us in SPINS_US:
        cycles = round(us * mhz)
        row = _row(_spinning(cycles), settings)
        body_us = cycles / row.get("sm_clock_mhz", mhz)
        findings.append(known_length(us, row["gpu_us"], body_us + calibration.empty_kernel_us()))
    return findings


def known_length(us: float, read_us: float, true_us: float) -> Finding:
    """A spin of about ``us``, which with its launch takes ``true_us``."""
    allowed_us = max(SPIN_US, SPIN_SHARE * true_us)
    found = f"{read_us:.2f} us where {true_us:.2f} us is right ({read_us - true_us:+.2f} us)"
    bar = f"within {SPIN_US:g} us or {100 * SPIN_SHARE:g} %"
    return Finding(f"spin of {us:g} us", found, bar, abs(read_us - true_us) <= allowed_us)


def methods(settings: TimingSettings) -> list[Finding]:
    """GELU by every method there is."""
    return [_by_every_method(log2, _gelu(2**log2), settings) for log2 in SIZES_LOG2]


def _by_every_method(log2: int, call: Call, settings: TimingSettings) -> Finding:
    graphs, stream = (
        _row(call, replace(settings, instrument=name)) for name in ("graph_timestamps", "stream_timestamps")
    )
    events_us = trimmed_mean(instruments.build("cuda_events", call, settings).samples(EVENT_SAMPLES))
    return beside_cupti(log2, graphs, stream, events_us)


def beside_cupti(log2: int, graphs: Mapping[str, Any], stream: Mapping[str, Any], events_us: float) -> Finding:
    """The rows of one call by two instruments against what CUPTI said of it, each time."""
    name = f"gelu 2^{log2}"
    bar = f"graphs within {CUPTI_US:g} us, stream {STREAM_US:g} us, or {100 * CUPTI_SHARE:g} %"
    seen = [float(row["cupti_us"]) for row in (graphs, stream) if "cupti_us" in row]
    if not seen:
        return Finding(name, "CUPTI cannot be asked here", bar, passed=False)
    cupti_us = fmean(seen)
    off = {"graphs": graphs["gpu_us"] - cupti_us, "stream": stream["gpu_us"] - cupti_us}
    shown = off | {"events": events_us - cupti_us, "wall clock": graphs["latency_us"] - cupti_us}
    found = f"CUPTI {cupti_us:.2f} us; " + ", ".join(f"{method} {us:+.2f}" for method, us in shown.items())
    allowed_us = {"graphs": CUPTI_US, "stream": STREAM_US}
    near = all(abs(us) <= max(allowed_us[method], CUPTI_SHARE * cupti_us) for method, us in off.items())
    return Finding(name, found, bar, near)


def same(settings: TimingSettings) -> list[Finding]:
    """The same call on the same buffers, which lie elsewhere in each pair."""
    calls = [_gelu(2**log2) for log2 in SAME_LOG2 for _ in range(SAME_EACH)]
    columns = _instrument(calls[0], settings)
    pairs = [compared(settings, "cuda", call, call, columns) for call in calls]
    name = "A/A, gelu " + " and ".join(f"2^{log2}" for log2 in SAME_LOG2)
    return [alike(name, pairs, SAME_MOST), sure(name, pairs)]


def slowed(settings: TimingSettings) -> list[Finding]:
    """A spin against one that is longer, launch and all."""
    mhz, empty_kernel_us = calibration.unloaded_mhz(), calibration.empty_kernel_us()
    quick, findings = replace(settings, max_s=min(settings.max_s, PAIR_S)), []
    for us, share in SLOWED:
        short, long = (_spinning(round((whole_us - empty_kernel_us) * mhz)) for whole_us in (us, us * (1 + share)))
        columns = _instrument(short, settings)
        pairs = [compared(quick, "cuda", long, short, columns) for _ in range(SLOWED_PAIRS)]
        findings.append(slower(f"spin of {us:g} us", pairs, share, SLOWED_LEAST))
    return findings


def coldness(settings: TimingSettings) -> list[Finding]:
    """The same call behind flushes of all sizes: beyond some, it must make no difference."""
    call = _gelu(2**COLD_LOG2)
    times_us = {}
    for factor in FLUSHES:
        constant_us = calibration.graph_constant_us(cold_l2=factor > 0, captures=settings.captures)
        before = reading_flush(factor) if factor else _nothing
        instrument = GraphTimestamps(call.run, before, captures=settings.captures, constant_us=constant_us)
        times_us[factor] = take(instrument, settings).summary.estimate
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return swept(times_us, fits=l2_bytes >= 2 * 4 * 2**COLD_LOG2)


def swept(times_us: Mapping[float, float], *, fits: bool) -> list[Finding]:
    """From the times behind each flush; ``fits``: the cache holds all that the call reads and writes."""
    most, next_to_it, none = times_us[4.0], times_us[2.0], times_us[0.0]
    apart = next_to_it / most - 1
    name, series = f"gelu 2^{COLD_LOG2}", ", ".join(f"{factor:g}: {us:.2f}" for factor, us in times_us.items())
    cold = Finding(
        f"{name}, L2 flushed",
        f"behind 2 L2 {100 * apart:+.2f} % of that behind 4 (us by flush: {series})",
        f"within {100 * COLD_SHARE:g} %",
        abs(apart) <= COLD_SHARE,
    )
    faster = 1 - none / next_to_it
    found = f"{100 * faster:.1f} % faster" + ("" if fits else "; does not fit")
    bar = f"at least {100 * WARM_SHARE:g} % faster" + ("" if fits else " where the L2 holds its data")
    return [cold, Finding(f"{name}, L2 warm", found, bar, not fits or faster >= WARM_SHARE)]


def zeros(settings: TimingSettings) -> list[Finding]:
    """A matrix product, whose time depends on what it multiplies wherever power limits it."""
    tensor_cores = torch.cuda.get_device_capability() >= (8, 0)
    dtype = torch.bfloat16 if tensor_cores else torch.float16
    small = _matmul(SMALL, dtype, torch.randn)
    quick = min(instruments.build("host_clock", small, settings).samples(5)) < QUICK_US
    size = LARGE if quick else SMALL
    random, nothing = (_row(_matmul(size, dtype, fill), settings) for fill in (torch.randn, torch.zeros))
    return [against_zeros(f"matmul {size}, {str(dtype).removeprefix('torch.')}", random["gpu_us"], nothing["gpu_us"])]


def against_zeros(name: str, random_us: float, zeros_us: float) -> Finding:
    """Nothing is easier to multiply than zeros."""
    ratio = random_us / zeros_us
    found = f"random {random_us:.1f} us, zeros {zeros_us:.1f} us: {ratio:.3f} times as long"
    return Finding(name, found, f"at least {1 - RANDOM_SHARE:g}", ratio >= 1 - RANDOM_SHARE)


def _row(call: Call, settings: TimingSettings) -> Mapping[str, Any]:
    """The columns of ``call``."""
    return settings.time(call, "cuda")


def _instrument(call: Call, settings: TimingSettings) -> dict[str, str]:
    """The columns of ``call`` that a comparison needs."""
    return {"instrument": instruments.choose(call, settings)[0].name}


def _gelu(count: int) -> Call:
    """GELU (tanh) of ``count`` float32 into a buffer that is there."""
    x = torch.randn(count, device="cuda")
    y = torch.empty_like(x)
    return Call(lambda: (GELU(x, approximate="tanh", out=y),))


def _spinning(cycles: int) -> Call:
    def run() -> tuple[Tensor, ...]:
        spin[(1,)](cycles, num_warps=1)
        return ()

    return Call(run)


def _matmul(size: int, dtype: torch.dtype, fill: Callable[..., Tensor]) -> Call:
    """The product of two square matrices."""
    a, b = (fill(size, size, dtype=dtype, device="cuda") for _ in range(2))
    c = torch.empty_like(a)
    return Call(lambda: (torch.mm(a, b, out=c),))


def _nothing() -> None:
    """No flush."""


CHECKS: Mapping[str, Check] = {
    "spins of known length": spins,
    "timestamps beside CUPTI": methods,
    "equal calls": same,
    "injected slowdowns": slowed,
    "coldness": coldness,
    "zeros against random": zeros,
}
