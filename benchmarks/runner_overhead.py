"""What the runner costs beside the measuring: ``--help``, and a grid of 200 cases of a few microseconds each.

    python -m benchmarks.runner_overhead [--rounds 3] [--write]

Three ways over the same 200 points, one after the other in each round: this runner; Hydra's own multirun (BasicSweeper
and BasicLauncher, all cases in one process, a config of two fields); one process for each case. The peers time with
``perf_counter`` around a number of calls: they check no result, keep no row and survive no crash.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import Run, digits, load_average, page, publish, run, table, timed

CASES = 200
PROCESSES = 10  # of the one-process-per-case way; its cost per case does not depend on how many there are
HELP_BAR_S, CASE_BAR_MS = 1.0, 50.0
ROWS = 8
GRID = [
    *("-m", "workload=gelu", f"workload.rows={ROWS}", f"workload.cols=range(1,{CASES + 1})"),
    *("impl=torch", "device=cpu", "log=none"),
    *("measure.benchmark.warmup_s=0.001", "measure.benchmark.samples=20", "measure.benchmark.max_s=0.01"),
]

PLAINEST = """
def plainest(rows, cols):
    x = torch.randn(rows, cols)
    started = time.perf_counter()
    for _ in range(20):
        torch.nn.functional.gelu(x, approximate="tanh")
    before = time.perf_counter()
    for _ in range(200):
        torch.nn.functional.gelu(x, approximate="tanh")
    after = time.perf_counter()
    return {"us": (after - before) / 200 * 1e6, "timing_s": after - started}
"""
HYDRA_APP = f"""
import json, time
import hydra
{PLAINEST}
@hydra.main(version_base="1.3", config_path=".", config_name="config")
def main(config):
    global torch
    started = time.perf_counter()
    import torch
    print("CASE", json.dumps({{"startup_s": time.perf_counter() - started, **plainest(config.rows, config.cols)}}))

main()
"""
ONE_PROCESS = f"""
import json, sys, time
import torch
{PLAINEST}
print(json.dumps(plainest({ROWS}, int(sys.argv[1]))))
"""
HEAVY = ("torch", "numpy", "pandas", "wandb")
HELP_IMPORTS = f"""
import atexit, sys
atexit.register(lambda: print("MODULES", *(name for name in {HEAVY} if name in sys.modules)))
from runner.cli import main
main(["--help"])
"""


@dataclass(frozen=True)
class Cost:
    """Cost of one way over the grid."""

    wall_s: float
    startup_s: float  # of the process that measures, until torch is imported
    overhead_ms: float  # a case, outside warm-up, sampling and start-up


def main() -> None:
    """Runs all, prints and perhaps writes the page."""
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
    """Wall times of ``--help``, five each; and what it imports."""
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
    """The three ways beside each other, and where our own time goes."""
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


def timing_s(ran: Run, count: int | None = None) -> float:
    """Seconds of warm-up and sampling, by the rows' own columns; of the first ``count`` cases, or of all."""
    metrics = [row.metrics for row in ran.rows[:count]]
    return sum(
        float(m["warmup_s"]) + float(m["samples"]) * float(m["calls_per_sample"]) * float(m["wall_us"]) * 1e-6
        for m in metrics
    )


def wall_s(ran: Run) -> float:
    """Seconds of all phases of all cases, in the worker."""
    return sum(float(row.metrics["wall_s"]) for row in ran.rows)


def overhead_ms(ran: Run) -> float:
    """A case, outside warm-up, sampling and start-up."""
    return (ran.wall_s - ran.startup_s - timing_s(ran)) / len(ran.rows) * 1e3


def outside_ms(ran: Run) -> float:
    """A case, outside all its phases and start-up."""
    return (ran.wall_s - ran.startup_s - wall_s(ran)) / len(ran.rows) * 1e3


def hydra_app(folder: Path) -> Path:
    """A throwaway app, as its documentation begins: a config of two fields."""
    folder.mkdir()
    (folder / "config.yaml").write_text("rows: 8\ncols: 8\n", encoding="utf-8")
    app = folder / "app.py"
    app.write_text(HYDRA_APP, encoding="utf-8")
    return app


def hydra_multirun(app: Path) -> Cost:
    """The grid by Hydra's own sweeper and launcher."""
    words = [f"rows={ROWS}", f"cols=range(1,{CASES + 1})", "-m"]
    wall, printed = timed([sys.executable, str(app), *words], cwd=app.parent)
    cases = [json.loads(line.removeprefix("CASE")) for line in printed.splitlines() if line.startswith("CASE")]
    assert len(cases) == CASES, f"{len(cases)} cases:\n{printed}"
    startup = cases[0]["startup_s"]
    return Cost(wall, startup, (wall - startup - sum(case["timing_s"] for case in cases)) / CASES * 1e3)


def one_process_per_case() -> Cost:
    """``PROCESSES`` of them, spread over the grid; the wall time is scaled to all."""
    total = 0.0
    overhead = 0.0
    for index in range(PROCESSES):
        wall, printed = timed([sys.executable, "-c", ONE_PROCESS, str(1 + index * CASES // PROCESSES)])
        total += wall
        overhead += wall - json.loads(printed)["timing_s"]
    return Cost(total / PROCESSES * CASES, 0.0, overhead / PROCESSES * 1e3)


def met(kept: bool) -> str:
    """In words."""
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
