"""Compare our kernels with torch, torch.compile, the vendor's libraries and a copy, in paired rounds, against bars.

    python -m benchmarks.kernels [gelu softmax matmul cdist mlp reduce_sum ...] [--write]

The runner holds the races: each is an experiment in conf/experiment beside this file, which leaves rows and paired
rounds. The ratios are from the same rounds, with a 95 % interval; those of latencies are from separate times. ``copy``
moves the least bytes of the workload. To see the runner's own table of a race, or another implementation in it:

    python -m runner --config-dir benchmarks/kernels/conf +experiment=races_softmax -m
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.common import load_average, page, publish, run
from benchmarks.kernels.races import EXPERIMENTS, OPS
from benchmarks.kernels.rows import results
from benchmarks.kernels.tables import report

CONF = Path(__file__).with_name("conf")


def main() -> int:
    """Run the races and print the pages; with --write keep them. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="op", help=f"which of {', '.join(OPS)}; all by default")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    args = parser.parse_args()
    if unknown := set(args.ops) - set(OPS):
        parser.error(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    load, missed = load_average(), 0
    with tempfile.TemporaryDirectory() as scratch:
        for op in args.ops or OPS:
            words = ["--config-dir", str(CONF), f"workload={op}", "device=cuda", "log=none", "-m"]
            runs = [  # exit code 1: a case failed, which its race says
                run([*words, f"+experiment={name}"], Path(scratch, op, name), codes=(0, 1)) for name in EXPERIMENTS[op]
            ]
            print(f"{op}: {sum(one.wall_s for one in runs):.0f} s", file=sys.stderr)
            body, misses = report(results(OPS[op](), [one.folder for one in runs]))
            missed += misses
            publish(f"kernels_{op}", page(f"Kernels: {op}", body, runs[0].facts, load), runs[0].facts, args.write)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
