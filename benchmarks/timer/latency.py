"""Compare the times of a caller with hand-written loops of the same calls, in turn, in one process.

    python -m benchmarks.timer.latency [--rounds 7] [--write]

A round takes the same by a plain loop, `latency_us`, `host_us` and `pipelined_us` as the benchmark does, and the plain
loop again. The table has the medians of all rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch

from benchmarks.common import load_average, page, publish, table, word
from benchmarks.timer.calls import gelu, matmul, softmax, spinning
from benchmarks.timer.peers import defaults
from runner.device import identity
from runner.store import run_folder
from runner.timing.call import Call
from runner.timing.instruments import HostClock
from runner.timing.latency import latency_columns
from runner.timing.preparation import preparation
from runner.timing.statistics import trimmed_mean

ROUNDS = 7
NEAR_US, NEAR_SHARE = 1.0, 0.1  # the allowed difference from a plain loop: the larger of the two
WARMUP, ALONE, IN_A_ROW, REPEATS = 20, 100, 100, 5  # calls of the plain loops
COLUMNS = ("latency_us", "host_us", "pipelined_us")

CALLS: Mapping[str, Callable[[], Callable[[], object]]] = {  # from 2 to 2000 us on an H200
    "gelu 2^10": lambda: gelu(2**10),
    "gelu 2^18": lambda: gelu(2**18),
    "gelu 2^10, nine times": lambda: gelu(2**10, times=9),
    "gelu 2^22, twice": lambda: gelu(2**22, times=2),
    "softmax 4096 x 1024": lambda: softmax(4096, 1024),
    "gelu 2^24": lambda: gelu(2**24),
    "matmul 4096": lambda: matmul(4096),
    "gelu 2^28": lambda: gelu(2**28),
    "matmul 8192": lambda: matmul(8192),
    "spin of 2000 us": lambda: spinning(2000.0),
}


@dataclass(frozen=True)
class Beside:
    """One call: what the benchmark and a plain loop read in each round, by column."""

    name: str
    gpu_us: float
    verdict: str
    flushed_us: float  # one call and a synchronize, each behind an L2 flush
    ours: Mapping[str, Sequence[float]]
    before: Mapping[str, Sequence[float]]  # by the plain loops before and after ours
    after: Mapping[str, Sequence[float]]

    def near(self, column: str) -> bool:
        """Return whether the median is near to the middle half of the plain loops, which is wide if the host changes.

        After 2 ms of waiting, a launch finds cold caches: then even medians of plain loops differ by 10 %.
        """
        ours_us = median(self.ours[column])
        low_us, _, high_us = quantiles([*self.before[column], *self.after[column]], n=4, method="inclusive")
        nearest_us = min(max(ours_us, low_us), high_us)
        return abs(ours_us - nearest_us) <= max(NEAR_US, NEAR_SHARE * nearest_us)

    def medians(self, column: str) -> str:
        """Return the median of ours and, in parentheses, those of the plain loops before and after, in us."""
        ours_us, before_us, after_us = (median(times[column]) for times in (self.ours, self.before, self.after))
        return f"{ours_us:.1f} ({before_us:.1f}, {after_us:.1f})"


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    found = [beside(name, make(), options.rounds) for name, make in CALLS.items()]
    facts = {**run_folder.environment(sys.argv[1:]), "worker": identity.describe()}
    body = report(found, options.rounds)
    publish("latency", page("Times of a caller beside plain loops", body, facts, load), facts, options.write)


def beside(name: str, run: Callable[[], object], rounds: int = ROUNDS) -> Beside:
    """Time ``run`` by the benchmark, then by its loops of a caller and by plain loops in turn."""
    call = Call(run)  # type: ignore[arg-type]  # outputs are not looked at
    row = defaults().time(call, "cuda")
    flushed_us = median(HostClock(run, preparation(None, cold_l2=True)).samples(ALONE))
    ours: dict[str, list[float]] = {column: [] for column in COLUMNS}
    before: dict[str, list[float]] = {column: [] for column in COLUMNS}
    after: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for _ in range(rounds):
        for column, us in zip(COLUMNS, by_plain_loops(run), strict=True):
            before[column].append(us)
        for column, us in latency_columns(call, defaults().max_s).items():
            if column in ours:
                ours[column].append(float(us or 0.0))
        for column, us in zip(COLUMNS, by_plain_loops(run), strict=True):
            after[column].append(us)
    torch.cuda.empty_cache()
    return Beside(name, float(row["gpu_us"]), str(row["verdict"]), flushed_us, ours, before, after)  # type: ignore[arg-type]


def by_plain_loops(run: Callable[[], object]) -> tuple[float, float, float]:
    """Return times in us: of a call and a synchronize, until the call returns, and of 100 calls back to back.

    They are trimmed means, as those of the benchmark: a median is of one mode of a host that has two.
    """
    for _ in range(WARMUP):
        run()
    torch.cuda.synchronize()
    latency_s, host_s, pipelined_s = [], [], []
    for _ in range(ALONE):
        started = time.perf_counter()
        run()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        latency_s.append(time.perf_counter() - started)
        host_s.append(returned - started)
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(IN_A_ROW):
            run()
        torch.cuda.synchronize()
        pipelined_s.append((time.perf_counter() - started) / IN_A_ROW)
    return 1e6 * trimmed_mean(latency_s), 1e6 * trimmed_mean(host_s), 1e6 * trimmed_mean(pipelined_s)


def report(found: Sequence[Beside], rounds: int) -> str:
    """Return the table and whether each of our medians agrees with that of the plain loop."""
    lines = [
        (
            one.name,
            f"{one.gpu_us:.2f}",
            f"{one.flushed_us:.1f}",
            *(one.medians(column) for column in COLUMNS),
            one.verdict,
        )
        for one in found
    ]
    far = [f"{column} of {one.name}" for one in found for column in COLUMNS if not one.near(column)]
    met = word(not far) + (f": {', '.join(far)}" if far else "")
    titles = ["call", "gpu_us", "latency behind a flush", *COLUMNS, "verdict"]
    return (
        f"Within {NEAR_US:g} us or {100 * NEAR_SHARE:g} % of a plain loop, medians of {rounds} rounds: {met}\n\n"
        f"{table(titles, lines)}\n\n"
        "In us; in parentheses those of the plain loops before and after ours. Where the host changes its speed, ours "
        "may lie anywhere in the middle half of theirs. All are trimmed means. Behind a flush, the GPU and the host "
        "have just done something else, so that a call takes longer than in a warm loop."
    )


if __name__ == "__main__":
    main()
