"""Measure the spread of times between processes, and how often equal and unequal calls are recognized as such.

    python -m benchmarks.timer.timer_spread [--processes 16] [--rounds 20] [--out DIR] [--write]

Each process times the same calls twice, A and A', each with its own buffers, and spins that are 1 and 2 % longer. It
uses this project's GPU timestamps, and CUDA event pairs in one-sample graphs after the same flush. All arms are
captured in random order and sampled in shuffled rounds. One process at a time uses the GPU; the next one only imports
torch meanwhile. A finished process writes its samples to DIR/process-NN.jsonl. ``--processes 0 --out DIR`` prints the
tables of existing files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import ROOT, load_average, page, publish
from benchmarks.timer.timer_spread.process import CAPTURES, measure
from benchmarks.timer.timer_spread.series import keep, kept
from benchmarks.timer.timer_spread.tables import report
from runner.store import run_folder
from runner.timing.statistics import BATCHES

LIMIT_S = 180.0  # time limit of one process; on an H100 it takes about 8 s


def main() -> None:
    """Run the processes and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16, help="0: only the tables of what is in --out")
    parser.add_argument("--rounds", type=int, default=20, help=f"each of {CAPTURES} samples an arm")
    parser.add_argument("--out", type=Path, help="folder for the raw samples; a temporary one that stays, if not given")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    parser.add_argument("--measure", type=int, metavar="INDEX", help=argparse.SUPPRESS)  # be one of the processes
    options, load = parser.parse_args(), load_average()
    if options.measure is not None:
        if sys.stdin.readline():  # imported; and the GPU is free now. Nothing to read: the parent has gone
            keep(measure(options.measure, options.rounds), raw(options.out, options.measure))
        return
    if CAPTURES * options.rounds < 20 * BATCHES:
        parser.error(f"--rounds {options.rounds}: take {20 * BATCHES // CAPTURES} or more, for 20 samples a batch")
    out = options.out or Path(tempfile.mkdtemp(prefix="timer-spread-"))
    out.mkdir(parents=True, exist_ok=True)
    print(f"raw samples: {out}", flush=True)
    seconds = run_all(out, options.processes, options.rounds)
    processes = [kept(path) for path in sorted(out.glob("process-*.jsonl"))]
    if len(processes) < 2:
        raise SystemExit(f"{len(processes)} processes in {out} have finished: at least 2 are needed")
    facts = {**run_folder.environment(sys.argv[1:]), "worker": processes[0].head["worker"]}
    publish(
        "timer_spread", page("Spread between processes", report(processes, seconds), facts, load), facts, options.write
    )


def raw(out: Path, index: int) -> Path:
    """Return the file with the samples of process ``index``."""
    return out / f"process-{index:02d}.jsonl"


def run_all(out: Path, count: int, rounds: int) -> float:
    """Run ``count`` processes, one on the GPU at a time, and return the seconds. If one fails, the others go on."""
    started = time.perf_counter()
    for index in range(count):
        raw(out, index).unlink(missing_ok=True)
    waiting = launch(out, 0, rounds) if count else None
    for index in range(count):
        process = waiting
        assert process is not None
        waiting = launch(out, index + 1, rounds) if index + 1 < count else None
        began = time.perf_counter()
        try:
            process.communicate("go\n", timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        except BaseException:
            for each in filter(None, (process, waiting)):
                each.kill()
            raise
        ended = "done" if process.returncode == 0 else f"FAILED with code {process.returncode}"
        print(f"process {index + 1} of {count}: {ended} after {time.perf_counter() - began:.1f} s", flush=True)
    return time.perf_counter() - started


def launch(out: Path, index: int, rounds: int) -> subprocess.Popen[str]:
    """Start a process that imports torch, and measures when it reads a line from stdin."""
    words = ["--measure", str(index), "--rounds", str(rounds), "--out", str(out.resolve())]
    command = [sys.executable, "-m", "benchmarks.timer.timer_spread", *words]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
