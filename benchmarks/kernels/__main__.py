"""Compare our kernels with torch, torch.compile, the vendor's libraries and a copy, in paired rounds, against bars.

    python -m benchmarks.kernels [gelu softmax matmul cdist mlp] [--write]

Every arm is checked against float64 first. All arms of a race share their inputs and output buffers. They are sampled
in turn by GPU timestamps, after a flush of the L2 cache that only reads. Ratios are from the same rounds, with a 95 %
interval. ``copy`` moves the least bytes of the workload.

GELU and softmax race in the runner itself, as anyone may repeat without the bars:

    python -m runner --config-dir benchmarks/kernels/conf +experiment=races_softmax -m
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT, load_average, page, publish, run
from benchmarks.kernels import rows
from benchmarks.kernels.races import EXPERIMENTS, OPS, Result
from benchmarks.kernels.tables import brief, report

CONF = Path(__file__).with_name("conf")


def main() -> int:
    """Run the races and print the pages; with --write keep them. Return 1 if a bar is missed or a race crashed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="op", help=f"which of {', '.join(OPS)}; all by default")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    parser.add_argument("--only", nargs="+", default=[""], help="races whose title has one of these in it")
    parser.add_argument("--into", metavar="FOLDER", help=argparse.SUPPRESS)  # the process that races
    args = parser.parse_args()
    if unknown := set(args.ops) - set(OPS):
        parser.error(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    ops = args.ops or list(OPS)
    if args.into:
        return race(ops, args.only, Path(args.into))
    load, missed = load_average(), 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        facts = run(["workload=gelu", "workload.cols=256", "impl=torch", "log=none"], folder / "facts").facts
        others, broke = [op for op in ops if op not in EXPERIMENTS], 0
        if others:
            words = [sys.executable, "-m", "benchmarks.kernels", *others, "--into", scratch, "--only", *args.only]
            broke = subprocess.run(words, cwd=ROOT, check=False).returncode
        for op in ops:
            file = folder / f"{op}.pickle"
            if op in EXPERIMENTS:
                found = held(op, args.only, folder)
            else:
                found = pickle.loads(file.read_bytes()) if file.exists() else []
            if found:
                body, misses = report(found)
                missed += misses
                publish(f"kernels_{op}", page(f"Kernels: {op}", body, facts, load), facts, args.write)
    return int(missed > 0 or broke != 0)


def held(op: str, only: Sequence[str], folder: Path) -> list[Result]:
    """Run the experiments of ``op`` under ``folder`` and return the results of its races."""
    races = [each for each in OPS[op]() if any(part in each.title for part in only)]
    found: list[Result] = []
    for name in EXPERIMENTS[op]:
        words = ["--config-dir", str(CONF), f"+experiment={name}", f"workload={op}", "log=none", "-m"]
        run_of = run(words, folder / op / name, codes=(0, 1))  # 1: an arm failed, which its race says
        found += rows.results(races, run_of.folder)
    return found


def race(ops: Sequence[str], only: Sequence[str], folder: Path) -> int:
    """Run the races of each op, and write the results to ``<op>.pickle``, which only the parent process reads."""
    from benchmarks.kernels.race import held

    for op in ops:
        started, results = time.perf_counter(), []
        for each in OPS[op]():
            if any(part in each.title for part in only):
                results.append(held(each))
                print(brief(results[-1]), file=sys.stderr)
                (folder / f"{op}.pickle").write_bytes(pickle.dumps(results))  # now, since a later race may crash
        print(f"{op}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
