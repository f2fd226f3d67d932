"""Compare timers with the truth: with CUPTI for GELU, and with the known length of spin kernels.

    python -m benchmarks.timer.timer_accuracy [--write]

All methods time the same call on the same buffers, each with its own defaults. They differ in the method, in the cache
that they leave, and in what they count. The peers time all calls first, since CUPTI may slow later launches of the same
process. Then ours times them, with CUPTI before and after.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any
from unittest import mock

import torch

from benchmarks.common import Run, digits, load_average, page, publish, table
from benchmarks.timer.calls import gelu
from benchmarks.timer.peers import Taken, by_peers, clocked, defaults
from runner.device import identity
from runner.measure.benchmark import Benchmark
from runner.store import run_folder
from runner.timing import calibration, cuda, cupti, instruments, peak_memory
from runner.timing.call import Call
from runner.timing.gpu_kernels import spin
from runner.timing.preparation import reading_flush

SIZES_LOG2 = range(10, 29, 2)
SPIN_CYCLES = (4_000, 10_000, 34_000, 200_000, 900_000)  # 2 to 455 us at 1.98 GHz; the last gives the clock
CUPTI_RUNS = 2  # observations before our timing, and again after it, of 30 calls each
NEAR_US, NEAR_SHARE = 0.25, 0.01  # the allowed difference of ours from the truth: the larger of the two
COST_LOG2, COST_REPEATS, COST_BAR_S = 24, 5, 0.3

OURS, WARM = "ours", "ours, warm"
METHODS = (OURS, "do_bench, mean", "do_bench, median", "do_bench_cudagraph", "Timer", "wall clock")
WARM_METHODS = (WARM, "do_bench_cudagraph", "Timer", "wall clock")  # nothing empties the cache between calls

# Parts of a case by the function that does them. Patched by name: a name that has gone raises AttributeError at once.
PIECES = {
    "choosing the instrument, capturing": (instruments, "choose"),
    "warm-up and sampling": (cuda, "take"),
    "L2 warm": (cuda, "warm_columns"),
    "as the caller sees it": (cuda, "latency_columns"),
    "asking CUPTI": (cupti, "observe"),
    "asking NVML": (cuda, "gpu_state"),
    "peak memory": (peak_memory, "peak_bytes"),
}

Figures = dict[str, Any]  # a row's columns


@dataclass(frozen=True)
class Truth:
    """Times by CUPTI, in us, each a mean of several observations."""

    cold_us: float
    warm_us: float
    cold_range_us: float  # from the smallest to the largest observation


@dataclass(frozen=True)
class Timed:
    """The times of one call by every method."""

    name: str
    truth: Truth
    us: dict[str, float]  # METHODS and WARM
    seconds: dict[str, float]  # seconds that each method took; ours includes CUPTI
    row: Figures  # all our columns

    @property
    def near(self) -> bool:
        """Whether our time agrees with CUPTI."""
        return near(self.us[OURS], self.truth.cold_us)


def near(us: float, true_us: float) -> bool:
    """Return whether ``us`` is within ``NEAR_US`` or ``NEAR_SHARE`` of ``true_us``."""
    return abs(us - true_us) <= max(NEAR_US, NEAR_SHARE * true_us)


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load, started = parser.parse_args(), load_average(), time.perf_counter()
    for owner, attribute in PIECES.values():
        getattr(owner, attribute)  # a renamed one shows now, not when all else is done
    settings = defaults()
    calls = {f"2^{log2}": gelu(2**log2) for log2 in SIZES_LOG2} | {
        str(cycles): spinning(cycles) for cycles in SPIN_CYCLES
    }
    peers = {name: by_peers(name, call) for name, call in calls.items()}
    first_s = took(lambda: measure(gelu(2**COST_LOG2), settings))
    print(f"first case of this process: {first_s:.2f} s", flush=True)
    costs = [cost(settings) for _ in range(COST_REPEATS)]
    print("cost of a case: done", flush=True)
    every = [timed(name, call, peers[name], settings) for name, call in calls.items()]
    sizes, spins = every[: len(SIZES_LOG2)], every[len(SIZES_LOG2) :]
    body = "\n\n".join(
        [
            f"All of it took {time.perf_counter() - started:.0f} s.",
            gelu_tables(sizes),
            spin_table(spins),
            cost_table(costs, first_s),
        ]
    )
    facts = {**run_folder.environment(sys.argv[1:]), "worker": identity.describe()}
    publish("timer_accuracy", page("Timers beside the truth", body, facts, load), facts, options.write)


def measure(run: Run, settings: Benchmark) -> Figures:
    """Return the columns of ``run`` by our benchmark."""
    return dict(settings.time(Call(run), "cuda"))  # type: ignore[arg-type]  # outputs are not looked at


def spinning(cycles: int) -> Run:
    """Return a call of a kernel of known length."""
    return lambda: spin[(1,)](cycles, num_warps=1)


def timed(name: str, call: Run, peers: Taken, settings: Benchmark) -> Timed:
    """Time ``call`` with ours and with CUPTI, and add the results of the peers."""
    us, seconds = peers
    seen = observations(call)
    with clocked(seconds, OURS):
        row = measure(call, settings)
    seen += observations(call)
    us |= {OURS: float(row["gpu_us"]), WARM: float(row.get("gpu_warm_us", math.nan))}
    colds, warms = zip(*seen, strict=True)
    truth = Truth(fmean(colds), fmean(warms), max(colds) - min(colds))
    print(f"{name}: CUPTI {truth.cold_us:.3f} us, ours {us[OURS]:.3f} us, verdict {row['verdict']}", flush=True)
    torch.cuda.empty_cache()
    return Timed(name, truth, us, seconds, row)


def observations(call: Run) -> list[tuple[float, float]]:
    """Return CUPTI's times of ``call``, L2 cold and warm, ``CUPTI_RUNS`` times. Raises RuntimeError without CUPTI."""
    flush, nothing = reading_flush(), lambda: None
    both = [(cupti.observe(call, flush), cupti.observe(call, nothing)) for _ in range(CUPTI_RUNS)]
    spans = [(cold.span_us, warm.span_us) for cold, warm in both if cold is not None and warm is not None]
    if not spans:
        raise RuntimeError("CUPTI gives no records here: there is no truth to compare with")
    return spans


def took(call: Run) -> float:
    """Return the seconds until ``call`` has finished, on the GPU too."""
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def cost(settings: Benchmark) -> dict[str, float]:
    """Return the seconds of one case by its parts, with "whole" and "rest"."""
    call = gelu(2**COST_LOG2)
    call()
    torch.cuda.synchronize()
    seconds: dict[str, float] = dict.fromkeys(PIECES, 0.0)
    row: Figures = {}
    with ExitStack() as stack:
        for name, (owner, attribute) in PIECES.items():
            stack.enter_context(mock.patch.object(owner, attribute, timing(getattr(owner, attribute), seconds, name)))
        whole = took(lambda: row.update(measure(call, settings)))
    rest = whole - sum(seconds.values())
    warmup = {"  of which warm-up": float(row["warmup_s"])}
    return seconds | {"rest": rest, "whole": whole} | warmup


def timing(function: Callable[..., Any], seconds: dict[str, float], name: str) -> Callable[..., Any]:
    """Wrap ``function`` so that it adds its time to ``seconds[name]``."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        with clocked(seconds, name):
            return function(*arguments, **named)

    return wrapped


def gelu_tables(sizes: Sequence[Timed]) -> str:
    """Return tables of every method against CUPTI, of warm methods against CUPTI with a warm cache, and of seconds."""
    beside = [
        (
            one.name,
            f"{one.truth.cold_us:.3f} (range {one.truth.cold_range_us:.3f})",
            *(beside_truth(one.us[method], one.truth.cold_us) for method in METHODS),
            "yes" if one.near else "NO",
        )
        for one in sizes
    ]
    warm = [
        (
            one.name,
            f"{one.truth.warm_us:.3f}",
            *(beside_truth(one.us[method], one.truth.warm_us) for method in WARM_METHODS),
        )
        for one in sizes
    ]
    seconds = [(one.name, *(one.seconds[method] for method in METHODS)) for one in sizes]
    far = [one.name for one in sizes if not one.near]
    limit = f"{NEAR_US} us or {100 * NEAR_SHARE:g} %"
    met = "PASS" if not far else f"MISS at {', '.join(far)}"
    return "\n\n".join(
        [
            f"## GELU, float32, L2 cold: ours within {limit} of CUPTI: {met}",
            table(["elements", "CUPTI, us", *METHODS, f"ours within {limit}"], beside),
            f"In us, with the deviation from CUPTI. CUPTI is the mean of {2 * CUPTI_RUNS} observations of up to "
            f"{cupti.MOST_CALLS} calls each, behind the reading flush, and the range that those span. The "
            "last three methods do not empty the cache. Ours is calibrated with CUPTI's time of an empty kernel.",
            "### The same against CUPTI with the cache as the last call left it",
            table(["elements", "CUPTI, us", *WARM_METHODS], warm),
            "### Seconds that each method took",
            table(["elements", *METHODS], seconds),
            "Both figures of do_bench are from one run. Ours also asks CUPTI, the host's clock and the allocator.",
        ]
    )


def spin_table(spins: Sequence[Timed]) -> str:
    """Return a table of every method, CUPTI included, against the known time of spins."""
    mhz, empty_kernel_us = float(spins[-1].row["sm_clock_mhz"]), calibration.empty_kernel_us()
    lines, far = [], []
    for one in spins:
        true_us = int(one.name) / mhz + empty_kernel_us
        if not near(one.us[OURS], true_us):
            far.append(one.name)
        figures = [one.truth.cold_us, *(one.us[method] for method in METHODS)]
        lines.append((one.name, f"{true_us:.3f}", *(beside_truth(us, true_us) for us in figures)))
    met = "PASS" if not far else f"MISS at {', '.join(far)}"
    return "\n\n".join(
        [
            f"## Spins of known length: ours within {NEAR_US} us or {100 * NEAR_SHARE:g} %: {met}",
            table(["cycles", "known, us", "CUPTI", *METHODS], lines),
            f"Known: cycles / {mhz:.1f} MHz, the clock that the timestamps read during the longest spin, and the "
            f"{empty_kernel_us:.3f} us that CUPTI gives a kernel that does nothing.",
        ]
    )


def cost_table(costs: Sequence[dict[str, float]], first_s: float) -> str:
    """Return a table of the medians of the parts of a case."""
    parts = [*PIECES, "rest", "whole"]
    parts.insert(parts.index("warm-up and sampling") + 1, "  of which warm-up")
    lines = []
    for part in parts:
        ms = [1e3 * each[part] for each in costs]
        lines.append((part, *(f"{figure:.1f}" for figure in (median(ms), min(ms), max(ms)))))
    whole = median(each["whole"] for each in costs)
    met = "PASS" if whole <= COST_BAR_S else "MISS"
    return "\n\n".join(
        [
            f"## Cost of a case: GELU 2^{COST_LOG2}, bar {COST_BAR_S} s: {digits(whole)} s, {met}",
            table(["part", "median, ms", "least", "most"], lines),
            f"Of {COST_REPEATS} cases in one process. Its first case took {first_s:.2f} s: CUPTI starts, kernels are "
            "compiled or loaded, the constant and the unloaded clock are measured.",
        ]
    )


def beside_truth(us: float, true_us: float) -> str:
    """Return a time with its deviation, such as ``15.13 (+0.12, +0.8 %)``."""
    return f"{us:.2f} ({us - true_us:+.2f}, {100 * (us / true_us - 1):+.1f} %)"


if __name__ == "__main__":
    main()
