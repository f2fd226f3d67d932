"""Our kernels beside torch, torch.compile, the vendor's libraries and a copy, in the same rounds, against their bars.

    python -m benchmarks.kernels [gelu softmax matmul cdist mlp] [--write]

Every arm is checked against float64 first. All arms of a race share their inputs and the places of their outputs; they
are sampled in turn by the project's own stamps, behind a flush of the L2 cache that reads. Ratios come from the same
rounds, with their 95 % interval. ``copy`` moves the bytes that the workload has to move at least.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import ROOT, load_average, page, publish, run
from benchmarks.kernels.races import OPS
from benchmarks.kernels.tables import brief, report


def main() -> int:
    """Race, print, and with --write keep the page. 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="op", help=f"which of {', '.join(OPS)}; all by default")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    parser.add_argument("--only", default="", help="races whose title has this in it")
    parser.add_argument("--one", metavar="FILE", help=argparse.SUPPRESS)  # an op's races, in a process of its own
    args = parser.parse_args()
    if unknown := set(args.ops) - set(OPS):
        parser.error(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    if args.one:
        return one(args.ops[0], args.only, Path(args.one))
    load, missed = load_average(), 0
    with tempfile.TemporaryDirectory() as folder:
        facts = run(["workload=gelu", "workload.cols=256", "impl=torch", "log=none"], Path(folder) / "facts").facts
        for op in args.ops or OPS:
            file, started = Path(folder) / f"{op}.json", time.perf_counter()
            words = [sys.executable, "-m", "benchmarks.kernels", op, "--one", str(file), "--only", args.only]
            subprocess.run(words, cwd=ROOT, check=True)
            body, misses = report(pickle.loads(file.read_bytes()))
            missed += misses
            text = page(f"Kernels: {op}", body + f"\n\n{time.perf_counter() - started:.0f} s in all.", facts, load)
            publish(f"kernels_{op}", text, facts, args.write)
    return int(missed > 0)


def one(op: str, only: str, file: Path) -> int:
    """The races of ``op``, as plain data, to ``file``."""
    from benchmarks.kernels.race import held

    results = []
    for race in OPS[op]():
        if only in race.title:
            results.append(held(race))
            print(brief(results[-1]), file=sys.stderr)
    file.write_bytes(pickle.dumps(results))  # read by our parent alone
    return 0


if __name__ == "__main__":
    sys.exit(main())
