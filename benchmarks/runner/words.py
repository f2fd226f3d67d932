"""Run a grid many times, and test whether its words are those of all runs together.

    python -m benchmarks.runner.words [--runs 20] [--words +experiment=demo] [--write]

The speed-up of an implementation is estimated from all runs: their geometric mean, with a 99 % interval. "faster" and
"slower" in a run must have the sign of that interval. What is slower than the fastest one of its problem by more than a
factor of 2, by the same means, must not be tied with it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, stdev

from pandas import DataFrame, concat

from benchmarks.common import load_average, page, publish, run, table, word
from runner.api.frame import load
from runner.timing.statistics import survival

TIED = 2.0
OUTSIDE = 0.005  # beyond each end of a 99 % interval


def main() -> int:
    """Print the tables. Return 0 if the bars are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--words", nargs="+", default=["+experiment=demo"], help="of the command line, without -m")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    options, before = parser.parse_args(), load_average()
    frames, seconds = [], []
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.runs):
            done = run([*options.words, "-m", "log=none"], Path(place) / str(number), codes=(0, 1))
            seconds.append(done.wall_s)
            frames.append(load(done.folder))
            print(f"run {number + 1} of {options.runs}: {done.wall_s:.0f} s", file=sys.stderr, flush=True)
        body, kept = report(frames, seconds)
        publish("words", page("The words of a grid, many times", body, done.facts, before), done.facts, options.write)
    return 0 if kept else 1


def interval(speedups: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean and a 99 % interval of it."""
    logs = [log(value) for value in speedups]
    middle = fmean(logs)
    if len(logs) < 2:
        return exp(middle), 0.0, inf
    half = quantile(len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return exp(middle), exp(middle - half), exp(middle + half)


def quantile(freedom: int) -> float:
    """Return the t beyond which ``OUTSIDE`` of Student's distribution lies."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, freedom) > OUTSIDE else (low, middle)
    return high


def report(frames: Sequence[DataFrame], seconds: Sequence[float]) -> tuple[str, bool]:
    """Return the tables, and whether the bars are kept."""
    every = concat(frames)
    every = every[every["speedup"].notna()]
    lines, wrong_signs, tied, said = [], 0, 0, 0
    for workload, problem in every.groupby("workload", sort=False):
        means = {impl: interval(rows["speedup"]) for impl, rows in problem.groupby("impl", sort=False)}
        best = max(middle for middle, _, _ in means.values())
        for impl, rows in problem.groupby("impl", sort=False):
            middle, low, high = means[impl]
            words = Counter(rows["vs_baseline"].dropna())
            ties = int((rows["fastest"] == "tied").sum())
            wrong_signs += (words["faster"] if low <= 1 else 0) + (words["slower"] if high >= 1 else 0)
            said += words["faster"] + words["slower"]
            tied += ties if best / middle > TIED else 0
            counts = ", ".join(f"{name} {count}" for name, count in sorted(words.items()))
            lines.append((workload, impl, f"{middle:.4g}", f"{low:.4g} to {high:.4g}", counts or "(base)", ties))
    bars = [
        (f"faster or slower, of {said}, whose sign is not that of all runs", wrong_signs, "0", word(not wrong_signs)),
        (f"losers by a factor above {TIED:g} that are called tied", tied, "0", word(not tied)),
    ]
    titles = ["workload", "implementation", "speed-up of all runs", "99 %", "words", "tied for the fastest"]
    took = f"{len(frames)} runs; a run took {fmean(seconds):.0f} s, {min(seconds):.0f} to {max(seconds):.0f}."
    return "\n\n".join([took, table(["", "count", "bar", ""], bars), table(titles, lines)]), not (wrong_signs or tied)


if __name__ == "__main__":
    sys.exit(main())
