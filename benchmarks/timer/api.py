"""Measure what ``runner.bench`` costs in a program of its own, and whether its times and words are right.

    python -m benchmarks.timer.api [--parts cost,gelu,spread,equal,slower,autotune] [--device cuda] [--load 0] [--write]

Each part runs fresh processes, one at a time, that import torch and ``runner`` alone, beside do_bench,
do_bench_cudagraph and torch's Timer with their defaults. Nothing of the command is used.

- cost: seconds of the first and of later calls of ``bench`` with a kernel of 5 us; the cache is filled before.
- gelu: GELU of 2^10 to 2^28 numbers, beside CUPTI, which records last.
- spread: one kernel in 16 processes.
- equal: pairs of equal calls; slower: a call that is 1 % longer at 17 us, on a CPU 20 % longer.
- autotune: the winner of ``@triton.autotune`` in 20 processes, with ``runner.do_bench`` and with Triton's.

On a CPU there are equal and slower, also with ``--load 2``, beside two endless loops.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, median, stdev
from typing import Any

import torch

from benchmarks.common import ROOT, beside, digits, load_average, publish_study, share_of, table, word
from runner import bench, do_bench

PARTS = {"cuda": ("cost", "gelu", "spread", "equal", "slower", "autotune"), "cpu": ("equal", "slower")}
PROCESSES = {"cost": 5, "gelu": 1, "spread": 16, "equal": 5, "slower": 5, "autotune": 20}
LIMIT_S = 300.0  # time limit of a process
LATER = 20  # calls of bench after the first
SIZES_LOG2 = range(10, 29, 2)
SPREAD_LOG2 = (18, 24)
PAIRS, SLOWED = {"cuda": 200, "cpu": 200}, {"cuda": 100, "cpu": 100}
LONGER = {"cuda": (17.0, 0.01), "cpu": (0.0, 0.20)}  # us of the shorter call, by what share the other is longer
TIMES = 20  # repetitions of an operation in the shorter call on a CPU
MOST_FALSE = {False: 0.02, True: 0.01}  # share of equal pairs, without and with other processes
FIRST_S, LATER_S, OFF_US, OFF_SHARE = 1.5, 0.25, 0.25, 0.01  # the bars
Record = dict[str, Any]


# --- what one process does ---


def cost(index: int, count: int, device: str) -> Iterator[Record]:
    """Yield the seconds of each way to time a kernel of 5 us, ours first, as in a program that has just started."""
    from benchmarks.timer.calls import spinning

    call = spinning(5.0)
    call()
    torch.cuda.synchronize()
    seconds, us = [], []
    for _ in range(1 + LATER):
        started = time.perf_counter()
        us.append(bench(call).us)
        seconds.append(time.perf_counter() - started)
    peers_s = {}
    for name, peer in peers().items():
        started = time.perf_counter()
        peer(call)
        peers_s[name] = time.perf_counter() - started
    yield {"first_s": seconds[0], "later_s": seconds[1:], "us": us, "peers_s": peers_s}


def gelu(index: int, count: int, device: str) -> Iterator[Record]:
    """Yield the times of GELU of each size by every method, and by CUPTI at the end."""
    from runner.timing import cupti
    from runner.timing.preparation import preparation

    found, calls = [], []
    for log2 in SIZES_LOG2:
        x = torch.randn(2**log2, device="cuda")
        call = partial(torch.nn.functional.gelu, x, approximate="tanh")
        started = time.perf_counter()
        ours = bench(call)
        seconds = time.perf_counter() - started
        given = bench(partial(torch.nn.functional.gelu, approximate="tanh"), x)
        found.append(
            {
                "log2": log2,
                "bench": ours.us,
                "bench, x given": given.us,
                "half_pct": given.interval_pct,
                "verdict": given.verdict,
                "seconds": seconds,
                **{name: peer(call) for name, peer in peers().items()},
            }
        )
        calls.append(call)
    cupti.observe(calls[0], preparation(None, cold_l2=True), calls=2)  # starts it
    for one, call in zip(found, calls, strict=True):
        seen = cupti.observe(call, preparation(None, cold_l2=True))
        yield {**one, "CUPTI": seen.span_us if seen else math.nan}


def spread(index: int, count: int, device: str) -> Iterator[Record]:
    """Yield the times of two sizes of GELU by each method."""
    for log2 in SPREAD_LOG2:
        x = torch.randn(2**log2, device="cuda")
        call = partial(torch.nn.functional.gelu, x, approximate="tanh")
        given = bench(partial(torch.nn.functional.gelu, approximate="tanh"), x)
        half = (given.interval_pct or 0.0) / 100
        yield {"log2": log2, "bench": given.us, "half": half, **{name: peer(call) for name, peer in peers().items()}}


def equal(index: int, count: int, device: str) -> Iterator[Record]:
    """Yield the word for each of ``count`` pairs of equal functions."""
    operations: list[Callable[..., Any]] = [torch.nn.functional.gelu, torch.relu, torch.tanh, torch.exp]
    sizes = (2**10, 2**16) if device == "cpu" else (2**18, 2**20, 2**22, 2**23)
    for turn in range(count):
        function = operations[(index + turn) % len(operations)]
        x = torch.randn(sizes[turn % len(sizes)], device=device)
        yield pair({"a": lambda x, f=function: f(x), "b": lambda x, f=function: f(x)}, x)


def slower(index: int, count: int, device: str) -> Iterator[Record]:
    """Yield the word for each of ``count`` pairs of which the first is longer by a known share."""
    us, share = LONGER[device]
    if device == "cuda":
        from benchmarks.timer.calls import spinning

        calls = {"a": spinning(us * (1 + share)), "b": spinning(us)}
        for call in calls.values():
            call()
        for _ in range(count):
            yield pair(calls)
        return
    for turn in range(count):
        x = torch.randn((2**10, 2**12)[turn % 2])
        yield pair({"a": repeated(round(TIMES * (1 + share))), "b": repeated(TIMES)}, x)


def repeated(times: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes GELU so many times."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            y = torch.nn.functional.gelu(x)
        return y

    return run


def pair(functions: Mapping[str, Callable[..., Any]], *args: torch.Tensor) -> Record:
    """Compare two functions, as a user does."""
    started = time.perf_counter()
    one = bench(functions, *args, baseline="b")["a"]
    half = math.log(one.speedup_high / one.speedup_low) / 2 if one.speedup_low else math.nan
    return {
        "word": one.word,
        "us": one.timing.us,
        "log": -math.log(one.speedup) if one.speedup else math.nan,
        "half": half,
        "seconds": time.perf_counter() - started,
    }


def autotune(index: int, count: int, device: str) -> Iterator[Record]:
    """Yield the winner among configurations of one kernel, by ``runner.do_bench`` and by Triton's, and the cost."""
    import triton
    from triton.testing import do_bench as tritons

    from runner.kernels.add.triton import _add

    x, y = (torch.randn(2**24, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    configurations = [
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (512, 1024, 2048, 4096, 8192)
        for warps in (2, 4, 8)
    ]
    found: Record = {}
    for name, timer in (("runner", do_bench), ("triton", tritons)):
        tuned = triton.autotune(configurations, key=[], do_bench=timer)(_add)
        started = time.perf_counter()
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        torch.cuda.synchronize()
        found[f"{name}_s"] = time.perf_counter() - started
        best = tuned.best_config
        found[name] = f"{best.kwargs['BLOCK']}/{best.num_warps}"
        found[f"{name}_ms"] = {
            f"{one.kwargs['BLOCK']}/{one.num_warps}": times[0] for one, times in tuned.configs_timings.items()
        }
    yield found


def peers() -> dict[str, Callable[[Callable[[], object]], float]]:
    """Return the other timers, which give us."""
    from torch.utils.benchmark import Timer
    from triton.testing import do_bench as tritons
    from triton.testing import do_bench_cudagraph

    return {
        "do_bench": lambda call: 1e3 * float(tritons(call, return_mode="median")),
        "do_bench_cudagraph": lambda call: 1e3 * float(do_bench_cudagraph(call)),
        "Timer": lambda call: 1e6 * Timer("call()", globals={"call": call}).blocked_autorange().median,
    }


WORK: dict[str, Callable[[int, int, str], Iterator[Record]]] = {
    "cost": cost,
    "gelu": gelu,
    "spread": spread,
    "equal": equal,
    "slower": slower,
    "autotune": autotune,
}
METHODS = ("do_bench", "do_bench_cudagraph", "Timer")


# --- what follows from the records; no GPU ---


def cost_page(records: Sequence[Record], loaded: bool) -> tuple[list[tuple[str, ...]], str]:
    """Return the bars and the table of the cost."""
    first, later = [one["first_s"] for one in records], [s for one in records for s in one["later_s"]]
    bars = [
        (f"first bench of a process in {FIRST_S:g} s", digits(max(first)), word(max(first) <= FIRST_S)),
        (f"a later bench of 5 us in {LATER_S:g} s, median", digits(median(later)), word(median(later) <= LATER_S)),
    ]
    lines = [("bench, first of a process", median(first), max(first)), ("bench, later", median(later), max(later))]
    for name in METHODS:
        spent = [one["peers_s"][name] for one in records]
        lines.append((name, median(spent), max(spent)))
    return bars, table(["a kernel of 5 us", "median, s", "longest, s"], lines)


def gelu_page(records: Sequence[Record], loaded: bool) -> tuple[list[tuple[str, ...]], str]:
    """Return the bar and the table of GELU beside CUPTI."""
    off = [abs(one["bench, x given"] - one["CUPTI"]) - max(OFF_US, OFF_SHARE * one["CUPTI"]) for one in records]
    bars = [
        (
            f"GELU within {OFF_US:g} us or {100 * OFF_SHARE:g} % of CUPTI",
            f"{sum(each <= 0 for each in off)} of {len(off)}",
            word(max(off) <= 0),
        )
    ]
    titles = ["numbers", "CUPTI, us", "bench, x given", "+- %", "bench", *METHODS, "bench, s", "verdict"]
    lines = []
    for one in records:
        others = [one[name] for name in ("bench", *METHODS)]
        head = (f"2^{one['log2']}", one["CUPTI"], one["bench, x given"], one["half_pct"] or math.nan)
        lines.append((*head, *others, one["seconds"], one["verdict"]))
    return bars, table(titles, lines)


def spread_page(records: Sequence[Record], loaded: bool) -> tuple[list[tuple[str, ...]], str]:
    """Return the bar and the table of the standard deviation between processes."""
    bars, lines = [], []
    for log2 in sorted({one["log2"] for one in records}):
        own = [one for one in records if one["log2"] == log2]
        mean_us = fmean(one["bench"] for one in own)
        inside = [abs(one["bench"] - mean_us) <= one["half"] * one["bench"] for one in own]
        count = f"{sum(inside)} of {len(inside)}"
        bars.append(
            (f"2^{log2}: interval holds the mean of all processes in 9 of 10", count, word(fmean(inside) >= 0.9))
        )
        spreads = [
            100 * stdev(one[name] for one in own) / fmean(one[name] for one in own) for name in ("bench", *METHODS)
        ]
        lines.append((f"2^{log2}", mean_us, *spreads))
    return bars, table(["GELU", "us", *(f"{name}, %" for name in ("bench", *METHODS))], lines)


def equal_page(records: Sequence[Record], loaded: bool) -> tuple[list[tuple[str, ...]], str]:
    """Return the bar and the table of equal pairs."""
    most = MOST_FALSE[loaded]
    wrong = [one["word"] in ("faster", "slower") for one in records]
    bar = f"equal functions called different in {100 * most:g} % or less"
    return [(bar, f"{sum(wrong)} of {len(wrong)}", word(fmean(wrong) <= most))], words_table("equal", records)


def slower_page(records: Sequence[Record], loaded: bool) -> tuple[list[tuple[str, ...]], str]:
    """Return the bar and the table of pairs that differ."""
    found = [one["word"] == "slower" for one in records]
    least = 0.80 if loaded else 0.95
    bar = f"the longer one named in {100 * least:g} % or more"
    return [(bar, f"{sum(found)} of {len(found)}", word(fmean(found) >= least))], words_table("slower", records)


def words_table(name: str, records: Sequence[Record]) -> str:
    """Return a table of the words for pairs."""
    counts = Counter(one["word"] for one in records)
    titles = ["pairs", "count", "same", "unclear", "faster", "slower", "measured, %", "width, %", "s a pair"]
    logs = 100 * fmean(one["log"] for one in records)
    width = 100 * median(one["half"] for one in records)
    seconds = median(one["seconds"] for one in records)
    own = [counts[each] for each in ("same", "unclear", "faster", "slower")]
    return table(titles, [(name, len(records), *own, f"{logs:+.2f}", width, seconds)])


def autotune_page(records: Sequence[Record], loaded: bool) -> tuple[list[tuple[str, ...]], str]:
    """Return the table of winners: how often each was chosen, and how far the choice is from the best on average."""
    lines, names = [], ("runner", "triton")
    means = {c: fmean(one["runner_ms"][c] for one in records) for c in records[0]["runner_ms"]}
    best = min(means.values())
    for name in names:
        winners = Counter(one[name] for one in records)
        lost = [100 * (means[one[name]] / best - 1) for one in records]
        said = ", ".join(f"{winner} x {count}" for winner, count in winners.most_common(4))
        lines.append((name, len(winners), said, fmean(lost), max(lost), median(one[f"{name}_s"] for one in records)))
    titles = ["do_bench of", "winners", "most often", "mean loss, %", "largest loss, %", "s"]
    kept = max(Counter(one["runner"] for one in records).values())
    loss = lines[0][3] <= lines[1][3]
    return [
        ("autotune loses no more than with Triton's do_bench", f"{kept} of {len(records)} alike", word(loss))
    ], table(titles, lines)


PAGES: dict[str, Callable[[Sequence[Record], bool], tuple[list[tuple[str, ...]], str]]] = {
    "cost": cost_page,
    "gelu": gelu_page,
    "spread": spread_page,
    "equal": equal_page,
    "slower": slower_page,
    "autotune": autotune_page,
}


def counts(part: str, options: argparse.Namespace) -> int:
    """Return how many pairs all processes of ``part`` judge together; 1 for other parts."""
    return {"equal": options.pairs, "slower": options.slowed}.get(part, 1)


def run(part: str, options: argparse.Namespace) -> list[Record]:
    """Return the records of all processes of ``part``. Raises CalledProcessError, TimeoutExpired."""
    found: list[Record] = []
    processes = options.processes or PROCESSES[part]
    for index in range(processes):
        count = max(1, share_of(counts(part, options), processes, index))
        command = [sys.executable, "-m", "benchmarks.timer.api", "--part", part, "--index", str(index)]
        command += ["--count", str(count), "--device", options.device]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
        found += map(json.loads, done.stdout.splitlines())
    return found


def main() -> None:
    """Run the parts and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", help="some of the parts, with commas between")
    parser.add_argument("--processes", type=int, help="of each part, instead of its own number")
    parser.add_argument("--pairs", type=int, default=200, help="of equal functions, in all processes together")
    parser.add_argument("--slowed", type=int, default=100, help="pairs of which one is longer")
    parser.add_argument("--load", type=int, default=0, help="endless loops beside them")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    parser.add_argument("--part", choices=list(WORK), help=argparse.SUPPRESS)  # be one of the processes
    parser.add_argument("--index", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    options, load = parser.parse_args(), load_average()
    if options.part:
        for record in WORK[options.part](options.index, options.count, options.device):
            print(json.dumps(record), flush=True)
        return
    parts = options.parts.split(",") if options.parts else PARTS[options.device]
    if unknown := [part for part in parts if part not in PARTS[options.device]]:
        parser.error(f"--parts: {unknown[0]}: on this device there are {', '.join(PARTS[options.device])}")
    bars: list[tuple[str, ...]] = []
    body = []
    if options.device == "cuda":
        prepare = "import torch, runner; runner.bench(torch.relu, torch.ones(99, device='cuda'))"
        subprocess.run([sys.executable, "-c", prepare], cwd=ROOT, check=True)  # fills the caches
    with beside(options.load):
        for part in parts:
            started = time.perf_counter()
            found, text = PAGES[part](run(part, options), options.load > 0)
            bars += found
            body.append(f"## {part.capitalize()}\n\n{text}\n\n{time.perf_counter() - started:.0f} s in all.")
            print(f"{part} is done after {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    page = "\n\n".join(["## Bars\n\n" + table(["bar", "seen", ""], bars), *body])
    publish_study("api", "The timer in a program of its own", page, options, load)


if __name__ == "__main__":
    main()
