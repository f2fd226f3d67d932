"""Time to resume a run of 10,000 finished cases: from the command to the first new case.

    python -m benchmarks.runner.resume [--cases 10000] [--rounds 5] [--write]

The runner's own code writes the journal: the rows of all cases but one, each as large as a row of a GPU. Then the real
command line resumes the run. The first new case has begun when its `start` record is in the journal. The time includes
Python, the plan, the journal, the fingerprints of the sources, and the start of a worker, which imports torch. Each
round has its own journal.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import LIMIT_S, POLL_S, ROOT, digits, environment, load_average, page, publish, table
from runner import config
from runner.records.columns import TIMES
from runner.records.plan import Plan
from runner.records.row import Row
from runner.store import journal, run_folder
from runner.store.fingerprint import Fingerprints

BAR_S = 2.0
GRID = [
    *("-m", "workload=gelu", "workload.rows=8", "impl=torch", "device=cpu", "log=none"),
    *("measure.benchmark.warmup_s=0", "measure.benchmark.samples=20", "measure.benchmark.max_s=0.01"),
]
WORDS = {"verdict": "ok", "verdict_reason": "", "instrument": "graph_timestamps", "tolerance": "2.4e-07 |r| + 3.0e-07"}
NUMBERS = ["build_s", "first_call_s", "max_abs_err", "max_rel_err", "err_over_tol", "flops", "bytes_min", "wall_s"]


def main() -> None:
    """Run all rounds, print the page, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    grid = [*GRID, f"workload.cols=range(1,{options.cases + 2})"]
    plan = config.plan(grid)
    ways = {"alone": ["resume=last"], "beside the whole command": [*grid, "resume=last"]}
    ways["nothing to resume"] = [*GRID, "workload.cols=1"]
    found: dict[str, list[float]] = {name: [] for name in ways}
    facts: dict[str, Any] = {}
    for turn in range(options.rounds):
        for name, words in ways.items():
            with tempfile.TemporaryDirectory(prefix="resume-") as scratch:
                if name != "nothing to resume":
                    finished(plan, Path(scratch))
                seconds, facts = first_case(words, Path(scratch))
            found[name].append(seconds)
            print(f"{turn + 1} of {options.rounds}, {name}: {seconds:.2f} s", flush=True)
    text = page("How long until a run goes on", report(found, options.cases), facts, load)
    publish("resume", text, facts, options.write)


def finished(plan: Plan, output_dir: Path) -> None:
    """Write a folder under ``output_dir`` in which all cases of ``plan`` but the last are done."""
    folder, draw = run_folder.claim(str(output_dir), plan.name), random.Random(0)
    run_folder.write_plan(folder, plan, plan.cases)
    run_folder.write_environment(folder, run_folder.environment([]))
    fingerprints = Fingerprints()
    synced, os.fdatasync = os.fdatasync, lambda file: None  # this journal need not survive a power cut
    with journal.Journal(folder) as file:
        for case in plan.cases[:-1]:
            figures = {name: draw.random() * 1e3 for name in [*TIMES, *NUMBERS]}
            batches = {"batches_us": [draw.random() * 1e3 for _ in range(10)]}
            file.start(case)
            file.row(
                Row(
                    case=case,
                    status="ok",
                    device="cpu",
                    metrics={**figures, **WORDS, "correct": True},
                    series=batches,
                    fingerprint=fingerprints.of(case),
                )
            )
    os.fdatasync = synced


def first_case(words: Sequence[str], output_dir: Path) -> tuple[float, dict[str, Any]]:
    """Return the seconds from the start of the command to the start of a new case, and facts of the machine."""
    command = [sys.executable, "-m", "runner", *words, f"output_dir={output_dir}"]
    old = next(iter(output_dir.glob(f"*/*/{journal.NAME}")), None)
    size = old.stat().st_size if old else 0
    started, seen = time.perf_counter(), 0.0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not seen and process.poll() is None:
            path = old or next(iter(output_dir.glob(f"*/*/{journal.NAME}")), None)
            if path and path.stat().st_size > size:
                with open(path, "rb") as file:
                    file.seek(size)
                    seen = time.perf_counter() - started if b'"record":"start"' in file.read() else 0.0
            time.sleep(POLL_S)
        output, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode or not seen:
        raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}:\n{output}")
    return seen, environment(next(iter(output_dir.glob("*/*/"))))


def report(found: dict[str, list[float]], cases: int) -> str:
    """Return the bar and the table."""
    alone = found["alone"]
    bar = (f"{cases:,} finished cases: first new case within {BAR_S:g} s, median", digits(median(alone)))
    lines = [(name, median(some), min(some), max(some)) for name, some in found.items()]
    return "\n\n".join(
        [
            table(["bar", "seen, s", ""], [(*bar, "PASS" if median(alone) <= BAR_S else "MISS")]),
            "## Seconds until the first new case\n\n" + table(["resume=last", "median", "least", "most"], lines),
            f"Alone: the grid is read from the folder. Beside the whole command: {cases:,} cases are composed and "
            "matched. Nothing to resume: a new run of one case, for what the runner and its worker take to start.",
        ]
    )


if __name__ == "__main__":
    main()
