"""Inject faults into cases, the runner and the disk, and count what a grid loses.

    python -m benchmarks.runner.faults [--cases 1000] [--kills 20] [--parts mix overhead kills lock disk] [--write]
    python -m benchmarks.runner.faults --parts many    # half an hour

All parts but the lock run the real command line and look at its rows, its exit code and the processes that it leaves.
The cases are a user's functions on tiny inputs, so that the cost of a fault is visible: a case takes about 40 ms where
times are compared, and about 15 ms elsewhere. The lock is taken by processes of this script. Their workers outlive
them for a while, as workers on a GPU do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import load_average, page, publish, run, table
from benchmarks.runner.faults.disk import disk
from benchmarks.runner.faults.grids import Part
from benchmarks.runner.faults.kills import killed, many
from benchmarks.runner.faults.lock import locked
from benchmarks.runner.faults.mix import mix
from benchmarks.runner.faults.overhead import overhead
from benchmarks.runner.hydra_multirun import GRID


def main() -> None:
    """Run the parts, print their tables, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[name for name in PARTS if name != "many"])
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        folder = Path(scratch)
        facts = run(
            [*GRID[:3], "workload.cols=1", *GRID[4:]], folder / "first"
        ).facts  # this also fills the disk's cache
        parts = []
        for name in options.parts:
            started = time.perf_counter()
            (folder / name).mkdir()
            parts.append(PARTS[name](folder / name, options.cases, options.kills))
            print(f"{name}: {time.perf_counter() - started:.0f} s", *parts[-1].bars, sep="\n  ", flush=True)
    publish("faults", page("What faults cost", report(parts), facts, load), facts, options.write)


def report(parts: Sequence[Part]) -> str:
    """Return the page: all bars, then each part."""
    bars = "## Bars\n\n" + table(["bar", "seen", ""], [bar for part in parts for bar in part.bars])
    return "\n\n".join([bars, *(f"## {part.title}\n\n{part.text}" for part in parts)])


PARTS: dict[str, Callable[[Path, int, int], Part]] = {
    "mix": mix,
    "overhead": overhead,
    "kills": killed,
    "many": many,
    "lock": locked,
    "disk": disk,
}

if __name__ == "__main__":
    main()
