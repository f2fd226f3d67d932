"""Test how many kernels are found of which one element is wrong in some of their calls.

    python -m benchmarks.subject.intermittent [--device cpu] [--problems 60] [--seed 0] [--write]

A problem is a sum of two vectors of a drawn size, of which a drawn element is wrong in 20 %, or in 5 %, of the calls.
On a GPU the kernel itself draws by the processor's clock, so that replays of one CUDA graph differ, as with a race; on
a CPU the function draws. ``ok`` means that no wrong result was seen. Up to twenty further calls are compared as time
allows, and the row counts them: where all twenty were, chance alone leaves 0.8**20 = 1.2 % of the first kind and 36 %
of the second.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import yaml

from benchmarks.common import load_average, page, publish, run, table, word
from runner.records.row import Row

FILE = Path(__file__).with_name("intermittent_add.py")
COUNTS = (2**8, 2**22)  # elements, the least and the most
COMPARED = 20
OFTEN, RARELY = 20, 5  # percent of the calls that are wrong
MISSED = 2 / 60  # of those often wrong with all calls compared
FOUND = 35 / 60  # of those rarely wrong


def main() -> int:
    """Print the tables. Return 0 if the bars are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of sizes and elements")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    options = parser.parse_args()
    load, drawn = load_average(), random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "workload").mkdir()
        names = [f"sum{number}" for number in range(options.problems)]
        for name in names:
            count = int(2 ** drawn.uniform(*(len(f"{bound:b}") - 1 for bound in COUNTS)))
            fields = {"name": name, "path": str(FILE), "count": count, "element": drawn.randrange(count)}
            (Path(place) / "workload" / f"{name}.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
        words = ["--config-dir", place, f"workload={','.join(names)}", f"workload.percent={OFTEN},{RARELY}"]
        words += [f"impl={'on_device' if options.device == 'cuda' else 'on_host'}", f"device={options.device}"]
        done = run([*words, "name=intermittent", "log=none", "-m"], Path(place) / "outputs", codes=(0, 1))
        body, kept = report(done.rows, options.problems)
        publish(
            "intermittent", page("Kernels that are sometimes wrong", body, done.facts, load), done.facts, options.write
        )
    return 0 if kept else 1


def report(rows: Sequence[Row], problems: int) -> tuple[str, bool]:
    """Return the tables of ``rows`` of so many ``problems``, and whether the bars are kept."""
    bars, counts, kept = [], [], True
    for percent in (OFTEN, RARELY):
        those = [row for row in rows if row.case.workload.fields["percent"] == percent]
        found = sum(row.status == "wrong" for row in those)
        passed = [int(row.metrics.get("checked_calls", 0)) for row in those if row.status == "ok"]
        others = len(those) - found - len(passed)
        full = sum(calls >= COMPARED for calls in passed)
        good = not others and (full <= MISSED * problems if percent == OFTEN else found >= FOUND * problems)
        bar = f"ok after {COMPARED}: {MISSED:.1%} or fewer" if percent == OFTEN else f"found: {FOUND:.1%} or more"
        bars.append((f"wrong in {percent} % of the calls", problems, found, full, bar, word(good)))
        counts.append((percent, len(passed), min(passed, default=0), median(passed or [0]), others))
        kept = kept and good
    return "\n\n".join(
        [
            table(["kernels", "problems", "found", f"ok after {COMPARED} or more", "bar", ""], bars),
            table(["wrong in, %", "ok", "fewest calls compared", "median", "neither ok nor wrong"], counts),
        ]
    ), kept


if __name__ == "__main__":
    sys.exit(main())
