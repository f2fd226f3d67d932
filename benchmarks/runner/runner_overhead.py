"""Measure the overhead of the runner: of ``--help``, and of a grid of 200 cases of a few microseconds each.

    python -m benchmarks.runner.runner_overhead [--rounds 3] [--write]

Each round runs the same 200 cases in three ways: this runner; Hydra's own multirun (BasicSweeper
and BasicLauncher, all cases in one process, a config of two fields); one process for each case. The peers time with
``perf_counter`` around a number of calls: they check no result, keep no row and survive no crash.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common import Run, digits, load_average, page, publish, run, table, timed
from benchmarks.runner.hydra_multirun import (
    CASES,
    GRID,
    PROCESSES,
    Cost,
    hydra_app,
    hydra_multirun,
    one_process_per_case,
    outside_ms,
    overhead_ms,
    timing_s,
    wall_s,
)

HELP_BAR_S, CASE_BAR_MS = 1.0, 50.0

HEAVY = ("torch", "numpy", "pandas", "wandb")
HELP_IMPORTS = f"""
import atexit, sys
atexit.register(lambda: print("MODULES", *(name for name in {HEAVY} if name in sys.modules)))
from runner.cli import main
main(["--help"])
"""


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times the grid is run each way; medians are shown")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    with tempfile.TemporaryDirectory(prefix="runner-overhead-") as scratch:
        folder = Path(scratch)
        app = hydra_app(folder / "app")
        help_lines = help_table(app)
        ours: list[Run] = []
        hydra: list[Cost] = []
        processes: list[Cost] = []
        for index in range(options.rounds):
            ours.append(run(GRID, folder / f"ours-{index}"))
            hydra.append(hydra_multirun(app))
            processes.append(one_process_per_case())
        single = run([*GRID[:3], "workload.cols=1", *GRID[4:]], folder / "single")
        body = "\n\n".join([help_lines, *grid_tables(ours, single, hydra, processes)])
        facts = ours[-1].facts
    publish("runner_overhead", page("What the runner costs", body, facts, load), facts, options.write)


def help_table(app: Path) -> str:
    """Return a table of five wall times of ``--help`` and its peers, and what ``--help`` imports."""
    ways = {
        "`python -m runner --help`": [sys.executable, "-m", "runner", "--help"],
        "`--help` of a Hydra app of two fields": [sys.executable, str(app), "--help"],
        '`python -c "import torch"`': [sys.executable, "-c", "import torch"],
    }
    times = {name: [timed(command)[0] for _ in range(5)] for name, command in ways.items()}
    ours = median(next(iter(times.values())))
    lines = [(name, min(some), median(some), median(some) / ours) for name, some in times.items()]
    _, printed = timed([sys.executable, "-c", HELP_IMPORTS])
    assert "MODULES" in printed, printed
    heavy = printed.rpartition("MODULES")[2].split()
    return "\n".join(
        [
            f"## `--help`: bar {HELP_BAR_S} s, {met(ours <= HELP_BAR_S and 'torch' not in heavy)}\n",
            table(["command", "best of 5, s", "median, s", "/ ours"], lines),
            f"\nOf {', '.join(HEAVY)}, `--help` imports: {', '.join(heavy) or 'none'}.",
        ]
    )


def grid_tables(ours: list[Run], single: Run, hydra: list[Cost], processes: list[Cost]) -> list[str]:
    """Return a table that compares the three ways, and one that splits our own time."""
    runs = [Cost(r.wall_s, r.startup_s, overhead_ms(r)) for r in ours]
    outside = median(outside_ms(r) for r in ours)
    mine = median(cost.overhead_ms for cost in runs)
    lines = [
        ("this runner", *_shown(runs, mine)),
        ("Hydra's multirun", *_shown(hydra, mine)),
        (f"a process per case ({PROCESSES}, scaled)", *_shown(processes, mine)),
    ]
    last = ours[-1]
    first_s = float(last.rows[0].metrics["wall_s"])
    own = [
        ("command, whole", last.wall_s * 1e3, last.wall_s * 1e3 / CASES),
        ("worker's start-up", last.startup_s * 1e3, last.startup_s * 1e3 / CASES),
        ("warm-up and sampling", timing_s(last) * 1e3, timing_s(last) * 1e3 / CASES),
        ("rest of the phases, first case", (first_s - timing_s(last, 1)) * 1e3, ""),
        ("rest of the phases, all cases", *_pair(wall_s(last) - timing_s(last))),
        ("outside the phases", *_pair(last.wall_s - last.startup_s - wall_s(last))),
        ("of which a grid of one case has too", *_pair(single.wall_s - single.startup_s - wall_s(single))),
    ]
    bar = f"bar {CASE_BAR_MS:g} ms a case, {met(mine <= CASE_BAR_MS)}"
    return [
        f"## A grid of {CASES} cases: {bar}\n\n"
        + table(["way", "wall, s", "start-up, s", "overhead, ms a case", "/ ours"], lines)
        + "\n\nOverhead: (wall - start-up - warm-up and sampling of all cases) / cases. Start-up: until torch is "
        "imported and the worker ready; a process per case has it in every case, so there it is overhead.\n"
        f"Ours without the other phases of a case (inputs, build, check, peak memory), that is "
        f"(wall - start-up - sum of `wall_s`) / cases: **{digits(outside)} ms**.",
        "## Where ours goes (last round)\n\n" + table(["part", "ms", "ms a case"], own),
    ]


def met(kept: bool) -> str:
    """Return ``met`` or ``NOT met``."""
    return "met" if kept else "NOT met"


def _shown(costs: list[Cost], ours_ms: float) -> tuple[object, ...]:
    every = [cost.overhead_ms for cost in costs]
    overhead = median(every)
    spread = f"{digits(overhead)} ({digits(min(every))} to {digits(max(every))})"
    return median(c.wall_s for c in costs), median(c.startup_s for c in costs), spread, overhead / ours_ms


def _pair(seconds: float) -> tuple[float, float]:
    return seconds * 1e3, seconds * 1e3 / CASES


if __name__ == "__main__":
    main()
