"""Test whether paired rounds call equal calls different, and whether they find a slowdown, also on a busy machine.

    python -m benchmarks.timer.equal_pairs [--device cpu] [--pairs 200] [--slowed 100] [--load 0] [--write]

A pair of equal calls is one operation on one input, as two functions: as in a sweep of ``impl=torch`` and ``impl=file``
with the same body. A slowdown of 5 % is an operation 21 times in a row beside the same one 20 times. Each of 10
processes judges its share of all pairs, on tensors of its own. ``--load 2`` runs two endless loops beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, stdev

import torch

from benchmarks.common import (
    add_process_options,
    digits,
    fields_of,
    load_average,
    over_processes,
    publish_study,
    table,
    word,
)
from benchmarks.timer.repeated import ratio_of, repeated, tensors
from runner.measure.benchmark import Benchmark
from runner.timing.call import Call
from runner.timing.statistics import T_975
from runner.timing.timer import Timer
from runner.worker import tidy

CALLS = {  # by device: what the equal calls compute
    "cpu": ("gelu 2^10", "gelu 2^16", "softmax 64 x 32", "matmul 128"),
    "cuda": ("gelu 2^18", "gelu 2^22", "softmax 4096 x 1024", "matmul 1024"),
}
SLOWED = {"cpu": ("gelu 2^10", "softmax 64 x 32"), "cuda": ("gelu 2^18", "softmax 1024 x 1024")}
TIMES, SHARES = 20, (0.05, 0.20)  # repetitions in the shorter call; by how much the other one is longer
SMALLEST_LOG2, LARGEST_LOG2 = 12, 22  # bytes of an allocation before each pair, which moves the next ones
LIMIT_S = 300.0  # time limit of a process, which takes 10 to 20 s

# The bars, without and with other processes.
MOST_DIFFERENT, LEAST_FOUND = {False: 0.02, True: 0.01}, {False: (0.05, 0.95), True: (0.20, 0.80)}


@dataclass(frozen=True)
class Judged:
    """The result of one pair."""

    call: str
    share: float  # by which the first is longer; 0 for equal calls
    word: str  # "" if the calls were too slow for paired rounds
    log: float = math.nan  # logarithm of the ratio
    half: float = math.nan  # half-width of its interval
    systematic: float = math.nan  # the part of ``half`` that is the instrument's
    seconds: float = 0.0


# --- what follows from the pairs ---


def bars(judged: Sequence[Judged], *, loaded: bool) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    most, (share, least) = MOST_DIFFERENT[loaded], LEAST_FOUND[loaded]
    different = [one.word in ("faster", "slower") for one in judged if not one.share]
    found = [one.word == "slower" for one in judged if one.share == share]
    return [
        (
            f"equal calls called different in {100 * most:g} % or less",
            _count(different),
            word(fmean(different) <= most),
        ),
        (f"{100 * share:g} % longer found in {100 * least:g} % or more", _count(found), word(fmean(found) >= least)),
    ]


def pairs_table(judged: Sequence[Judged]) -> str:
    """Return a table with a line for each call and share."""
    titles = ["first call longer by", "call", "pairs", "same", "unclear", "faster", "slower", "too slow"]
    lines = []
    for share, call in dict.fromkeys((one.share, one.call) for one in judged):
        some = [one for one in judged if (one.share, one.call) == (share, call)]
        words = [one.word for one in some]
        counts = [words.count(each) for each in ("same", "unclear", "faster", "slower", "")]
        lines.append(
            (f"{100 * share:g} %", call, len(some), *counts, *_spread(some), median(one.seconds for one in some))
        )
    return table([*titles, "measured, %", "width, %", "spread, %", "sampling, %", "s a pair"], lines)


def _spread(some: Sequence[Judged]) -> list[str]:
    """Return, in percent: mean ratio, median half-width, standard deviation of the ratios, and that from sampling."""
    timed = [one for one in some if one.word]
    if len(timed) < 2:
        return ["", "", "", ""]
    freedom = max(T_975)
    sampling = math.sqrt(fmean(one.half**2 - one.systematic**2 for one in timed)) / T_975[freedom]
    logs = [one.log for one in timed]
    return [
        f"{100 * fmean(logs):+.2f}",
        *(digits(100 * one) for one in (median(o.half for o in timed), stdev(logs), sampling)),
    ]


def report(judged: Sequence[Judged], processes: int, load: int, seconds: float) -> str:
    """Return the bars and the table."""
    beside = f"beside {load} endless loops" if load else "on a quiet machine"
    return "\n\n".join(
        [
            f"{processes} processes, {beside}; {seconds:.0f} s in all.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars(judged, loaded=load > 0)),
            "## Pairs\n\n" + pairs_table(judged),
            "Each word is for the pair alone. Measured: mean of the ratio's logarithm. Width: median half-width of the "
            "95 % interval. Spread: standard deviation of the ratios, and what sampling alone explains of it; the rest "
            "is `PAIR_FLOORS` in runner/timing/statistics.py.",
        ]
    )


def _count(some: Sequence[bool]) -> str:
    return f"{sum(some)} of {len(some)}"


# --- one process ---


def judge_all(index: int, device: str, settings: Timer, pairs: int, slowed: int) -> Iterator[Judged]:
    """Judge ``pairs`` pairs of equal calls, and ``slowed`` of each share, in random order."""
    chance, held = random.Random(index), []
    plan = [(CALLS[device][i % len(CALLS[device])], 0.0) for i in range(index, index + pairs)]
    plan += [(SLOWED[device][i % 2], share) for i in range(index, index + slowed) for share in SHARES]
    chance.shuffle(plan)
    settings.prepare(device)
    tidy()  # as a worker does before its first case
    for call, share in plan:
        held.append(
            torch.empty(int(2 ** chance.uniform(SMALLEST_LOG2, LARGEST_LOG2)), dtype=torch.uint8, device=device)
        )
        x, times = tensors(call, device), TIMES if share else 1
        yield judge(
            call, share, settings, device, repeated(call, x, round(times * (1 + share))), repeated(call, x, times)
        )


def judge(call: str, share: float, settings: Timer, device: str, first: Call, second: Call) -> Judged:
    """Compare two calls as a run compares two implementations, of which the first is longer by ``share``."""
    for each in (first, second):
        each.run()
    started = time.perf_counter()
    ratio = ratio_of(first, second, settings, device)
    if ratio is None:
        return Judged(call, share, "", seconds=time.perf_counter() - started)
    return Judged(call, share, ratio.word, ratio.log, ratio.half, ratio.systematic, time.perf_counter() - started)


# --- all processes, and the page ---


def main() -> None:
    """Run the processes and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_process_options(parser, processes=10)
    parser.add_argument("--pairs", type=int, default=200, help="of equal calls, in all processes together")
    parser.add_argument("--slowed", type=int, default=100, help="pairs of each slowdown")
    options, load = parser.parse_args(), load_average()
    if options.process is not None:
        settings = Benchmark(**fields_of("measure", "benchmark"))
        for one in judge_all(options.process, options.device, settings, options.pairs, options.slowed):
            print(json.dumps(asdict(one)), flush=True)
        return
    if min(options.pairs, options.slowed) < options.processes:
        parser.error("--pairs and --slowed: at least one of each a process")
    started = time.perf_counter()
    records = over_processes("benchmarks.timer.equal_pairs", options, ("pairs", "slowed"), LIMIT_S)
    judged = [Judged(**record) for record in records]
    body = report(judged, options.processes, options.load, time.perf_counter() - started)
    publish_study("equal_pairs", "Equal calls and slower ones in paired rounds", body, options, load)


if __name__ == "__main__":
    main()
