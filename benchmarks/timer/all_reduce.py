"""Compare all_reduce as this project times it with a plain loop and with the method of nccl-tests.

    python -m benchmarks.timer.all_reduce [--device cuda] [--ranks 2] [--pairs 40] [--slowed 20] [--write]

Three methods take times in turn, in the same processes:

- Ours: `gpu_us` is a call alone, after a barrier on the GPUs and with a cold L2 cache, of the slowest rank.
- A plain loop that takes the same in another way: CUDA events instead of timestamps, without any code of the timer. The
  difference is the timer's error, which may be 3 %.
- That of nccl-tests (all_reduce_perf, in place): a loop to warm up, a barrier, n calls back to back, and one wait, on
  each rank. The time of a call is the loop's over n, as the mean of ranks, which nccl-tests reports, and of the
  slowest. `pipelined_us` is the same of as many calls, so it may differ by 3 %. Launching a small call from Python
  takes longer than the call; so the loop is also made as a CUDA graph, as nccl-tests does with -G. Ours of that is
  `pipelined_us` of `impl=cudagraph`, where each call is a graph.

All methods take the trimmed mean of the samples of a turn, as ours does. The median of the turns counts, and of their
ratios.

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
from functools import cache, partial
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
from runner.timing.latency import IN_A_ROW, LOOP_S, LOOP_SHARE, MOST_IN_A_ROW, latency_columns
from runner.timing.statistics import trimmed_mean
from runner.timing.timer import Timer

SIZES = {"cuda": "1M,64M,1024M", "cpu": "64k,1M"}
PAIR_SIZES = {"cuda": ("1M", "64M"), "cpu": ("64k",)}
ITERATIONS = 20  # of nccl-tests, by default
LOOPS = 10  # in each turn
GRAPHS, SAMPLES = 5, 20  # of the plain loop in each turn, and from each graph
TURNS, MORE_TURNS, SMALL = 5, 15, 2**22  # of all methods, and for calls of fewer bytes, whose times vary more
SLOWER = 0.05
CLOSE = 0.03  # bar: the same by two methods
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


def calls_of(call: Call, count: int) -> Callable[[], None]:
    """Return a function that makes ``count`` calls back to back."""

    def run() -> None:
        for _ in range(count):
            call.run()

    return run


def nccl_tests_us(run: Callable[[], object], count: int) -> tuple[float, float]:
    """Return the time of one of the ``count`` calls of ``run`` in us by the method of nccl-tests: mean and slowest."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    loops = []
    for _ in range(LOOPS):
        run()
        synchronize()
        ranks.current.meet()
        started = time.perf_counter()
        run()
        synchronize()
        loops.append(ranks.current.gather((time.perf_counter() - started) / count * 1e6))
    return trimmed_mean([fmean(loop) for loop in loops]), trimmed_mean([max(loop) for loop in loops])


def in_a_graph(run: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a CUDA graph of ``run``, as nccl-tests makes it with ``-G``."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay


def plain_us(call: Call, device: str) -> float:
    """Return the time of ``call`` alone in us, of the slowest rank, without the timer.

    On a GPU, CUDA events take them. What those read for an empty kernel, less that kernel's time, is subtracted.
    """
    if device == "cpu":
        samples = [on_host_us(call.run) for _ in range(GRAPHS * SAMPLES)]
    else:
        offset_us = trimmed_mean(events_us(empty_kernel)) - empty_kernel_us()
        samples = [us - offset_us for us in events_us(call.run)]
    return trimmed_mean(ranks.current.slowest(samples))


def on_host_us(run: Callable[[], object]) -> float:
    """Return the time of ``run`` after a barrier, by the host's clock."""
    ranks.current.meet()
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e6


def events_us(run: Callable[[], object]) -> list[float]:
    """Return times of ``run`` between two CUDA events in a graph, behind a flush of the L2 cache and a barrier."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    scratch, flag = torch.zeros(l2_bytes // 2, device="cuda"), torch.zeros(1, device="cuda")
    times = []
    for _ in range(GRAPHS):
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))

        def sample(start: torch.cuda.Event = start, end: torch.cuda.Event = end) -> None:
            scratch.amax()
            dist.all_reduce(flag)
            start.record()
            run()
            end.record()

        replay = in_a_graph(sample)
        for _ in range(SAMPLES):
            replay()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
    return times


def empty_kernel() -> None:
    """Launch a kernel that does nothing."""
    torch.cuda._sleep(0)


@cache
def empty_kernel_us() -> float:
    """Return the time of an empty kernel on the GPU, by torch's profiler; 0 if it sees none."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(SAMPLES):
            empty_kernel()
        torch.cuda.synchronize()
    times = [event.time_range.elapsed_us() for event in seen.events() or () if "spin" in event.name]
    return median(times) if times else 0.0


def compare_methods(numbers: int, device: str, settings: Timer) -> dict[str, Any]:
    """Return the times of an all_reduce of ``numbers`` float32 by all methods, in us."""
    call = in_place(numbers, device)
    words: dict[str, Any] = {}
    turns: list[dict[str, float]] = []
    for _ in range(MORE_TURNS if 4 * numbers < SMALL else TURNS):
        columns, _ = settings.timed(call, device)
        words = {key: str(columns.get(key) or "") for key in ("instrument", "instrument_note")}
        time_us, spread_us, latency_us, pipelined_us = (
            float(columns.get(name) or 0.0)
            for name in ("gpu_us" if device == "cuda" else "wall_us", "rank_spread_us", "latency_us", "pipelined_us")
        )
        one = {"alone": time_us, "spread": spread_us, "plain": plain_us(call, device)}
        one["alone over plain"] = time_us / one["plain"]
        one["theirs, mean"], one["theirs, slowest"] = nccl_tests_us(calls_of(call, ITERATIONS), ITERATIONS)
        if device == "cuda":
            row_us = IN_A_ROW * min(LOOP_S, LOOP_SHARE * settings.max_s) * 1e6
            words["count"] = count = max(1, min(MOST_IN_A_ROW, int(row_us / latency_us)))
            _, one["alike"] = nccl_tests_us(calls_of(call, count), count)
            one |= {"pipelined": pipelined_us, "pipelined over alike": pipelined_us / one["alike"]}
            one["graph, mean"], one["graph"] = nccl_tests_us(in_a_graph(calls_of(call, ITERATIONS)), ITERATIONS)
            one["graph over plain"] = one["graph"] / one["plain"]
            captured = latency_columns(Call(run=in_a_graph(call.run)), settings.max_s)
            one["captured"] = float(captured["pipelined_us"] or 0.0)
        turns.append(one)
    return {name: median(turn[name] for turn in turns) for name in turns[0]} | {"turns": len(turns)} | words


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


def over(ratio: float) -> tuple[str, str]:
    """Return by how many percent the first of two times is longer, and whether that is within the bar."""
    return f"{100 * (ratio - 1):+.1f} %", word(abs(ratio - 1) <= CLOSE)


def report(records: list[dict[str, Any]], device: str, count: int) -> str:
    """Return the tables and the bars."""
    sizes, pairs = [one for one in records if "size" in one], [one for one in records if "pair" in one]
    name, factor = "gpu_us" if device == "cuda" else "wall_us", 2 * (count - 1) / count
    bar, lines, loops = f"within {CLOSE:.0%}", [], []
    for one in sizes:
        bus = digits(factor * (size(one["size"]) or 0) / one["alone"] / 1e3)
        figures = one["alone"], one["plain"], *over(one["alone over plain"]), one["spread"], bus, one["instrument"]
        lines.append((one["size"], *figures))
        theirs: list[Any] = [one["theirs, mean"], one["theirs, slowest"]]
        if device == "cuda":
            theirs += [one["count"], one["alike"], one["pipelined"], *over(one["pipelined over alike"])]
            theirs += [one["graph, mean"], one["graph"], one["captured"], over(one["graph over plain"])[0]]
        loops.append((one["size"], *theirs))
    alone = ["size", f"ours, {name}", "plain loop", "ours over plain", bar, "rank spread", "bus GB/s", "instrument"]
    row = ["size", f"n = {ITERATIONS}, mean of ranks", f"n = {ITERATIONS}, slowest"]
    if device == "cuda":
        row += ["n of ours", "slowest", "ours, pipelined_us", "ours over it", bar]
        row += ["-G, mean of ranks", "-G, slowest", "ours, of impl=cudagraph", "-G over a call alone"]
    body = [
        f"{count} ranks, float32, in place; medians of {' or '.join(dict.fromkeys(str(one['turns']) for one in sizes))}"
        " turns, in us. A call alone:\n",
        table(alone, lines),
    ]
    body += ["", "By the method of nccl-tests, back to back:\n", table(row, loops), ""]
    body += [*{one["instrument_note"] for one in sizes if one["instrument_note"]}, ""]
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
