"""A grid of tiny cases, and two other ways to run it: Hydra's own multirun, and a process per case."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Run, timed

CASES = 200


PROCESSES = 10  # processes of the one-process-per-case way; the cost of a case does not depend on their number


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


@dataclass(frozen=True)
class Cost:
    """Cost of running the grid in one way."""

    wall_s: float
    startup_s: float  # of the process that measures, until torch is imported
    overhead_ms: float  # a case, outside warm-up, sampling and start-up


def timing_s(ran: Run, count: int | None = None) -> float:
    """Return the seconds of warm-up and sampling of the first ``count`` cases, or of all, from the rows' columns."""
    metrics = [row.metrics for row in ran.rows[:count]]
    return sum(
        float(m["warmup_s"]) + float(m["samples"]) * float(m["calls_per_sample"]) * float(m["wall_us"]) * 1e-6
        for m in metrics
    )


def wall_s(ran: Run) -> float:
    """Return the seconds of all phases of all cases, in the worker."""
    return sum(float(row.metrics["wall_s"]) for row in ran.rows)


def overhead_ms(ran: Run) -> float:
    """Return the ms of a case outside warm-up, sampling and start-up."""
    return (ran.wall_s - ran.startup_s - timing_s(ran)) / len(ran.rows) * 1e3


def outside_ms(ran: Run) -> float:
    """Return the ms of a case outside all its phases and start-up."""
    return (ran.wall_s - ran.startup_s - wall_s(ran)) / len(ran.rows) * 1e3


def hydra_app(folder: Path) -> Path:
    """Write a Hydra app with a config of two fields, as in Hydra's tutorial."""
    folder.mkdir()
    (folder / "config.yaml").write_text("rows: 8\ncols: 8\n", encoding="utf-8")
    app = folder / "app.py"
    app.write_text(HYDRA_APP, encoding="utf-8")
    return app


def hydra_multirun(app: Path) -> Cost:
    """Run the grid with Hydra's own sweeper and launcher."""
    words = [f"rows={ROWS}", f"cols=range(1,{CASES + 1})", "-m"]
    wall, printed = timed([sys.executable, str(app), *words], cwd=app.parent)
    cases = [json.loads(line.removeprefix("CASE")) for line in printed.splitlines() if line.startswith("CASE")]
    assert len(cases) == CASES, f"{len(cases)} cases:\n{printed}"
    startup = cases[0]["startup_s"]
    return Cost(wall, startup, (wall - startup - sum(case["timing_s"] for case in cases)) / CASES * 1e3)


def one_process_per_case() -> Cost:
    """Run ``PROCESSES`` cases of the grid in a process each. The wall time is scaled to all cases."""
    total = 0.0
    overhead = 0.0
    for index in range(PROCESSES):
        wall, printed = timed([sys.executable, "-c", ONE_PROCESS, str(1 + index * CASES // PROCESSES)])
        total += wall
        overhead += wall - json.loads(printed)["timing_s"]
    return Cost(total / PROCESSES * CASES, 0.0, overhead / PROCESSES * 1e3)
