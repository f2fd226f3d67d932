"""Measure the cost of a grid on a GPU: 200 cases of GELU of 2^24 elements, by the command line, checked and compared.

    python -m benchmarks.runner.grid_cost [--seeds 100] [--write]

Two implementations of each of 100 seeds, so that there are 100 comparisons. The same grid again, with next to no
samples and without comparisons, shows what the runner itself costs outside of its cases: the difference is the
comparisons. Then the peers time the same GELU with their defaults; they check nothing, compare nothing, keep nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.common import Run, digits, load_average, page, phase_table, publish, run, table, word
from benchmarks.timer.calls import gelu
from benchmarks.timer.peers import by_peers
from runner.records.row import Row
from runner.store import journal

ROWS = COLS = 4096
IMPLS = ("torch", "triton")
CASE_BAR_S, WHOLE_BAR_S = 0.3, 0.4
PEER_REPEATS = 5
PEERS = {  # what timer_accuracy calls them, and we
    "do_bench, mean": "do_bench",
    "do_bench_cudagraph": "do_bench_cudagraph",
    "Timer": "Timer, blocked_autorange",
}
BARE = [  # what is left of a case when it is hardly measured
    "measure.benchmark.paired_rounds=0",
    "measure.benchmark.samples=20",
    "measure.benchmark.max_s=0.01",
    "measure.benchmark.warmup_s=0.001",
    "measure.benchmark.cupti_check=false",
    "measure.benchmark.measured_peak=false",
]


@dataclass(frozen=True)
class Grid:
    """One run of the command."""

    wall_s: float  # of the whole command
    startup_s: float  # of its worker, until it is ready
    rows: tuple[Row, ...]
    compared: int  # points whose two cases were sampled side by side

    @property
    def case_s(self) -> list[float]:
        """Seconds of each case in the worker, in their order."""
        return [float(row.metrics["wall_s"]) for row in self.rows]

    @property
    def later(self) -> list[Row]:
        """The cases but the first of each implementation, which compile or load what the others find there."""
        firsts = {self.names.index(name) for name in self.names}
        return [row for place, row in enumerate(self.rows) if place not in firsts]

    @property
    def later_s(self) -> list[float]:
        """Their seconds."""
        return [float(row.metrics["wall_s"]) for row in self.later]

    @property
    def names(self) -> list[str]:
        """The implementation of each case, in their order."""
        return [row.case.impl.name for row in self.rows]

    @property
    def outside_s(self) -> float:
        """Seconds outside of the cases and the worker's start-up: comparisons, and the runner itself."""
        return self.wall_s - self.startup_s - sum(self.case_s)


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help=f"each {len(IMPLS)} cases, at least 2")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    if options.seeds < 2:
        parser.error("--seeds: at least 2, or there is no case but the first ones")
    with tempfile.TemporaryDirectory(prefix="grid-cost-") as scratch:
        ran = run(words(options.seeds), Path(scratch) / "whole")
        facts, whole = ran.facts, grid(ran, options.seeds)
        print(f"{len(whole.rows)} cases: {whole.wall_s:.1f} s", flush=True)
        bare = grid(run([*words(options.seeds), *BARE], Path(scratch) / "bare"), 0)
        print(f"{len(bare.rows)} cases hardly measured, none compared: {bare.wall_s:.1f} s", flush=True)
    body = report(whole, bare, peers())
    publish("grid_cost", page("What a grid costs", body, facts, load), facts, options.write)


def words(seeds: int) -> list[str]:
    """Return the arguments of the command."""
    size = [f"workload.rows={ROWS}", f"workload.cols={COLS}"]
    return ["-m", "workload=gelu", *size, f"impl={','.join(IMPLS)}", f"seed=range(0,{seeds})", "log=none"]


def grid(ran: Run, comparisons: int) -> Grid:
    """Copy the figures of ``ran``, whose folder is temporary.

    Raises RuntimeError unless every case was timed and ``comparisons`` pairs were compared.
    """
    compared = sum(bool(rounds.batches_us) for rounds in journal.load(ran.folder).rounds)
    untimed = [row for row in ran.rows if row.time_us is None]
    if untimed or compared != comparisons:
        why = untimed[0].reason if untimed else f"{compared} of {comparisons} pairs compared"
        raise RuntimeError(f"not the grid that was asked for: {len(untimed)} cases not timed; {why}")
    return Grid(ran.wall_s, ran.startup_s, ran.rows, compared)


def peers() -> dict[str, list[float]]:
    """Return the seconds of each peer for one GELU, several times. The first time of the process is left out."""
    call, found = gelu(ROWS * COLS), {name: list[float]() for name in PEERS.values()}
    for turn in range(-1, PEER_REPEATS):
        _, seconds = by_peers(f"gelu, {turn + 1} of {PEER_REPEATS}", call)
        if turn >= 0:
            for method, name in PEERS.items():
                found[name].append(seconds[method])
    return found


# --- what follows; no GPU ---


def report(whole: Grid, bare: Grid, by_peers_s: Mapping[str, Sequence[float]]) -> str:
    """Return the bars and all tables."""
    return "\n\n".join(
        [
            f"{len(whole.rows)} cases of GELU, {ROWS} x {COLS} float32: {' and '.join(IMPLS)}, "
            f"{len(whole.rows) // len(IMPLS)} seeds, {whole.compared} comparisons.",
            "## Bars\n\n" + table(["bar", "seen, s", ""], bars(whole)),
            "## Seconds of a case (`wall_s`)\n\n" + case_table(whole),
            phase_table({"without the first of each": whole.later}),
            "A case is: inputs, building, the check against float64, timing with its cache cold and warm, what the "
            "caller waits for, CUPTI, peak memory. The first ones also start CUPTI and compile or load kernels, and "
            "where this machine's measured_peak is not kept from an earlier run, measure it.",
            "## Where the time goes\n\n" + part_table(whole, bare),
            "Comparisons: the command's wall time less start-up and cases, less the same of a grid as large that "
            f"compares nothing and hardly measures ({' '.join(BARE)}).",
            "## Beside the peers\n\n" + peer_table(whole, by_peers_s),
            f"Medians of {PEER_REPEATS} in one process, with their defaults, of torch's GELU into a buffer that is "
            "there. They give one number: no check, no interval, no comparison, no row.",
        ]
    )


def bars(whole: Grid) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    later, each = fmean(whole.later_s), whole.wall_s / len(whole.rows)
    return [
        (f"a case {CASE_BAR_S:g} s or less: mean, compilation apart", digits(later), word(later <= CASE_BAR_S)),
        (
            f"{WHOLE_BAR_S:g} s or less a case in all: wall time / {len(whole.rows)}",
            digits(each),
            word(each <= WHOLE_BAR_S),
        ),
    ]


def case_table(whole: Grid) -> str:
    """Return a table of the first case of each implementation, and of the spread of the others."""
    lines: list[tuple[object, ...]] = []
    for name in dict.fromkeys(whole.names):
        first_s, *later_s = (s for s, other in zip(whole.case_s, whole.names, strict=True) if other == name)
        call_s = float(whole.rows[whole.names.index(name)].metrics["first_call_s"])
        lines.append((name, *_spread(later_s), first_s, call_s))
    lines.append(("all", *_spread(whole.later_s), "", ""))
    return table(
        ["implementation", "mean", "median", "90th percentile", "largest", "its first case", "of which first call"],
        lines,
    )


def part_table(whole: Grid, bare: Grid) -> str:
    """Return a table of the parts of the command's wall time, in total and for each case or comparison."""
    firsts_s, comparisons_s = sum(whole.case_s) - sum(whole.later_s), whole.outside_s - bare.outside_s
    count = len(whole.rows)
    parts = [
        ("first case of each implementation", firsts_s, len(set(whole.names)), "case"),
        ("the other cases", sum(whole.later_s), len(whole.later_s), "case"),
        ("comparisons, by difference", comparisons_s, whole.compared, "comparison"),
        ("start of the worker", whole.startup_s, 1, ""),
        ("the runner itself, by the bare grid", bare.outside_s, count, "case"),
        ("whole command", whole.wall_s, count, "case"),
    ]
    lines = [
        (name, seconds, f"{100 * seconds / whole.wall_s:.1f}", f"{digits(seconds / each)} a {what}" if what else "")
        for name, seconds, each, what in parts
    ]
    return table(["part", "s", "%", "s each"], lines)


def peer_table(whole: Grid, by_peers_s: Mapping[str, Sequence[float]]) -> str:
    """Return a table of the cost of one GELU by every method."""
    ours = {"ours, a case": median(whole.later_s), "ours, in all": whole.wall_s / len(whole.rows)}
    theirs = {name: median(seconds) for name, seconds in by_peers_s.items()}
    in_all = ours["ours, in all"]
    lines = [(name, seconds, seconds / in_all) for name, seconds in (ours | theirs).items()]
    return table(["method", "s a case", "/ ours, in all"], lines)


def _spread(seconds: Sequence[float]) -> tuple[float, float, float, float]:
    return fmean(seconds), median(seconds), float(np.quantile(seconds, 0.9)), max(seconds)


if __name__ == "__main__":
    main()
