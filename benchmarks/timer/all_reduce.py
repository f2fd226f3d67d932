"""Compare all_reduce as this project times it with a loop by the method of nccl-tests, in the same processes.

    python -m benchmarks.timer.all_reduce [--device cuda] [--ranks 2] [--pairs 40] [--slowed 20] [--write]

The loop is that of nccl-tests (all_reduce_perf, in place): a loop to warm up, a barrier, 20 calls back to back, and one
wait, on each rank. The time of a call is the loop's over 20, as the mean of ranks, which nccl-tests reports by default,
and of the slowest. From Python, launching 20 small calls takes longer than they do; so the loop is also made as a CUDA
graph, as nccl-tests does with -G. `gpu_us` of ours is a call alone, of the slowest rank, as its workload times it.

Then pairs in paired rounds: equal calls, which may be called different at most once in 40, and calls that also copy as
many bytes as take 5 % of the time, which must be found in 19 of 20.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import (
    ROOT,
    add_process_options,
    digits,
    fields_of,
    load_average,
    publish_study,
    table,
    word,
)
from benchmarks.timer.repeated import ratio_of
from runner.device.exchange import MeetingPlace
from runner.measure.benchmark import Benchmark
from runner.records.schema import size
from runner.timing import ranks
from runner.timing.call import Call
from runner.timing.timer import Timer

SIZES = {"cuda": "1M,64M,1024M", "cpu": "64k,1M"}
PAIR_SIZES = {"cuda": ("1M", "64M"), "cpu": ("64k",)}
ITERATIONS = 20  # of nccl-tests
LOOPS = 5  # in each turn
REPEATS = 5  # of both methods in turn; the median counts
SLOWER = 0.05
CLOSE = 0.03  # bar: the same convention by both methods
MOST_DIFFERENT, LEAST_FOUND = 1 / 40, 19 / 20


def in_place(numbers: int, device: str) -> Call:
    """Return an all_reduce of zeros, which stay zeros however often they are added."""
    x = torch.zeros(numbers, device=device)

    def run() -> Tensor:
        dist.all_reduce(x)
        return x

    return Call(run=run)


def with_copy(call: Call, source: Tensor, target: Tensor, count: int) -> Call:
    """Return ``call`` with a copy of ``count`` numbers after it."""

    def run() -> object:
        result = call.run()
        target[:count].copy_(source[:count])
        return result

    return Call(run=run)


def calls_of(call: Call) -> Callable[[], None]:
    """Return a function that makes ``ITERATIONS`` calls back to back."""

    def run() -> None:
        for _ in range(ITERATIONS):
            call.run()

    return run


def nccl_tests_us(run: Callable[[], object]) -> list[float]:
    """Return the time of one of the calls of ``run`` on each rank in us, by the method of nccl-tests."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    run()
    synchronize()
    ranks.current.meet()
    started = time.perf_counter()
    run()
    synchronize()
    return [float(us) for us in ranks.current.gather((time.perf_counter() - started) / ITERATIONS * 1e6)]


def in_a_graph(run: Callable[[], None]) -> Callable[[], object]:
    """Return the replay of a CUDA graph of ``run``, as nccl-tests makes it with ``-G``; ``run`` if none can hold it."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
    except RuntimeError as error:
        print(f"no graph: {error}", file=sys.stderr)
        return run
    return graph.replay


def compare_methods(numbers: int, device: str, settings: Timer) -> dict[str, Any]:
    """Return the times of an all_reduce of ``numbers`` float32 by both methods, in us."""
    call = in_place(numbers, device)
    run = calls_of(call)
    replay = in_a_graph(run) if device == "cuda" else run
    loops, graphs, ours = [], [], []
    for _ in range(REPEATS):
        loops += [nccl_tests_us(run) for _ in range(LOOPS)]
        graphs += [nccl_tests_us(replay) for _ in range(LOOPS)]
        columns, _ = settings.timed(call, device)
        ours.append(columns)
    name = "gpu_us" if device == "cuda" else "wall_us"
    figures = {
        "loop, mean of ranks": median(fmean(us) for us in loops),
        "loop, slowest": median(max(us) for us in loops),
        "graph, mean of ranks": median(fmean(us) for us in graphs),
        "graph, slowest": median(max(us) for us in graphs),
        "pipelined_us": median(float(columns.get("pipelined_us") or 0.0) for columns in ours),
        name: median(float(columns[name] or 0.0) for columns in ours),
        "rank_spread_us": median(float(columns.get("rank_spread_us") or 0.0) for columns in ours),
    }
    words = {key: str(ours[-1].get(key) or "") for key in ("instrument", "instrument_note")}
    return {**figures, **words}


def copy_for(call: Call, scratch: tuple[Tensor, Tensor], device: str, settings: Timer) -> int:
    """Return how many numbers a copy must have to make ``call`` longer by ``SLOWER``."""
    rough = replace(settings, samples=100, target_pct=5.0, max_s=0.3)

    def us(each: Call) -> float:
        columns, _ = rough.timed(each, device)
        return float(columns["gpu_us" if device == "cuda" else "wall_us"] or 0.0)

    alone_us = us(call)
    low, high = 1, scratch[0].numel()
    while high - low > max(64, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if us(with_copy(call, *scratch, middle)) < (1 + SLOWER) * alone_us else (low, middle)
    return high


def judge(settings: Timer, device: str, instrument: str, first: Call, second: Call) -> str:
    """Return the word for a pair, of all ranks alike."""
    for each in (first, second):
        each.run()
    ratio = ratio_of(first, second, settings, device, instrument)
    return ratio.word if ratio else "too slow"


def one_rank(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what a rank finds: a record for each size, and for each pair."""
    path, rank, count = options.place.split(",")
    ranks.join(path, int(rank), int(count), options.device)
    settings = Benchmark(**fields_of("measure", "benchmark"))
    settings.prepare(options.device)
    for each in options.sizes.split(","):
        yield {"size": each, **compare_methods((size(each) or 0) // 4, options.device, settings)}
    for each in PAIR_SIZES[options.device] if options.pairs + options.slowed else ():
        share = len(PAIR_SIZES[options.device])
        numbers = (size(each) or 0) // 4
        call, again = in_place(numbers, options.device), in_place(numbers, options.device)
        instrument = str(settings.timed(call, options.device)[0]["instrument"])
        for _ in range(options.pairs // share):
            yield {"pair": each, "slower": 0.0, "word": judge(settings, options.device, instrument, call, again)}
        if options.slowed // share:
            scratch = torch.zeros(numbers, device=options.device), torch.zeros(numbers, device=options.device)
            copied = copy_for(call, scratch, options.device, settings)
            slow = with_copy(again, *scratch, copied)
            for _ in range(options.slowed // share):
                yield {"pair": each, "slower": SLOWER, "word": judge(settings, options.device, instrument, slow, call)}


def all_ranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the ranks, and return what rank 0 has found. Raises CalledProcessError."""
    place, count = MeetingPlace(options.ranks), options.ranks
    words = ["--device", options.device, "--sizes", options.sizes]
    words += ["--pairs", str(options.pairs), "--slowed", str(options.slowed)]
    command = [sys.executable, "-m", "benchmarks.timer.all_reduce", *words, "--place"]
    running = [
        subprocess.Popen([*command, f"{place.path},{rank},{count}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    try:
        records = []
        for line in running[0].stdout or ():
            records.append(json.loads(line))
            print(line, end="", file=sys.stderr, flush=True)
        for process in running:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, command)
    finally:
        for process in running:
            process.kill()
    return records


def report(records: list[dict[str, Any]], device: str, count: int) -> str:
    """Return the tables and the bars."""
    sizes, pairs = [one for one in records if "size" in one], [one for one in records if "pair" in one]
    name, factor = "gpu_us" if device == "cuda" else "wall_us", 2 * (count - 1) / count
    lines, body = [], [f"{count} ranks, float32, in place; medians of {REPEATS} turns, in us.\n"]
    for one in sizes:
        off = one[name] / one["graph, slowest"] - 1
        bus = factor * (size(one["size"]) or 0) / one[name] / 1e3
        columns = ("loop, mean of ranks", "loop, slowest", "pipelined_us", "graph, mean of ranks", "graph, slowest")
        figures = [one[key] for key in (*columns, name, "rank_spread_us")]
        lines.append(
            (one["size"], *figures, digits(bus), f"{100 * off:+.1f} %", word(abs(off) <= CLOSE), one["instrument"])
        )
    titles = [
        "size",
        "loop, mean of ranks",
        "loop, slowest",
        "ours, pipelined",
        "graph, mean of ranks",
        "graph, slowest",
    ]
    titles += [f"ours, {name}", "rank spread", "bus GB/s", "ours over graph", f"within {CLOSE:.0%}", "instrument"]
    body += [table(titles, lines), "", *{one["instrument_note"] for one in sizes if one["instrument_note"]}, ""]
    judged = []
    for slower in dict.fromkeys(one["slower"] for one in pairs):
        words = [one["word"] for one in pairs if one["slower"] == slower]
        called = words.count("slower") if slower else sum(said in ("faster", "slower") for said in words)
        kept = called >= LEAST_FOUND * len(words) if slower else called <= MOST_DIFFERENT * len(words)
        bar = f"{slower:.0%} longer: found slower" if slower else "equal calls: called different"
        judged.append((bar, f"{called} of {len(words)}", word(kept)))
    at = " and ".join(dict.fromkeys(one["pair"] for one in pairs))
    return "\n".join([*body, *([f"Pairs, at {at}:\n", table(["pairs", "seen", "bar"], judged)] if judged else [])])


def main() -> None:
    """Print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_process_options(parser, 1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", help="comma-separated, as 1M,64M")
    parser.add_argument("--pairs", type=int, default=40, help="of equal calls, at all sizes together")
    parser.add_argument("--slowed", type=int, default=20, help="pairs of which one copies too, at all sizes together")
    parser.add_argument("--place", help=argparse.SUPPRESS)  # be one of the ranks
    options = parser.parse_args()
    options.sizes = options.sizes or SIZES[options.device]
    if options.place:
        emit = partial(print, flush=True) if options.place.split(",")[1] == "0" else lambda line: None
        for record in one_rank(options):
            emit(json.dumps(record))
        dist.destroy_process_group()
        return
    load = load_average()
    body = report(all_ranks(options), options.device, options.ranks)
    publish_study("all_reduce", "all_reduce beside the method of nccl-tests", body, options, load)


if __name__ == "__main__":
    main()
