"""Run the public tasks of a folder at small sizes: how many end with a verdict, and why the others do not.

    python -m benchmarks.subject.public_tasks FOLDER... [--bytes 262144] [--draw 60] [--device cpu] [--with WORD...]

The sizes of each task are halved, the largest first, as long as its reference runs on tensors without memory, until
inputs, weights and outputs fit in so many bytes. Each task, or ``--draw`` of them, then runs with ``impl=reference``:
torch's own result must be right. ``--with`` adds words of the command line, as impl=reference,compiled and
workload.dtype=bfloat16. The folder is a copy of the reader's, as of KernelBench.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from benchmarks.common import load_average, page, publish, run, table, word
from benchmarks.subject.sizes import smaller
from runner.records.row import Row
from runner.tasks import formats, own_file

QUICK = ("quick=true", "measure.benchmark.max_s=0.02", "measure.benchmark.paired_rounds=0", "log=none")
ENDS, VERDICTS = 0.99, 0.93  # shares of tasks: that end with a verdict or a sentence, and with a verdict


def main() -> int:
    """Print the tables. Return 0 if the bars are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--bytes", type=int, default=2**18, help="of inputs, weights and outputs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--draw", type=int, help="so many tasks at random; all without")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--with", nargs="*", default=[], dest="words", help="further words of the command line")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    options = parser.parse_args()
    load = load_average()
    paths = [path for folder in options.folders for path in formats.find(formats.as_place(folder))]
    if options.draw:
        paths = sorted(random.Random(options.seed).sample(paths, options.draw))
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "workload").mkdir()
        names = []
        for number, path in enumerate(paths):
            file = own_file.read(path, strict=False)
            names.append(f"task{number}")
            fields = {} if file.refused else smaller(file, options.bytes)
            listed = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
            text = yaml.safe_dump({"name": f"{number}_{Path(path).name}", "path": str(Path(path).resolve()), **listed})
            (Path(place) / "workload" / f"task{number}.yaml").write_text(text, encoding="utf-8")
        words = ["--config-dir", place, f"workload={','.join(names)}", "name=tasks", f"device={options.device}", "-m"]
        impl = next((word for word in options.words if word.startswith("impl=")), "impl=reference")
        words += [*QUICK, impl, *(word for word in options.words if word != impl)]
        done = run(words, Path(place) / "outputs", codes=(0, 1))
        body, kept = report(done.rows, len(paths) * len(impl.split(",")))
        publish("public_tasks", page("Public tasks at small sizes", body, done.facts, load), done.facts, options.write)
    return 0 if kept else 1


def report(rows: Sequence[Row], count: int) -> tuple[str, bool]:
    """Return the tables of ``rows`` of ``count`` tasks, and whether the bars are kept."""
    ends = Counter(_end(row) for row in rows)
    verdicts, refused, wrong = ends["right"] + ends["wrong"], ends["refused"], ends["wrong"]
    judged = verdicts + refused >= ENDS * count
    kept = judged and verdicts >= VERDICTS * count and not wrong
    lines = [
        ("a verdict or a reason in one line", verdicts + refused, f"{ENDS:.0%} of {count}", word(judged)),
        ("a verdict", verdicts, f"{VERDICTS:.0%} of {count}", word(verdicts >= VERDICTS * count)),
        ("torch's own result called wrong", wrong, "0", word(not wrong)),
    ]
    others = [(row.case.workload.name.partition("_")[2], row.status, reason) for row, reason in _without(rows)]
    parts = [table(["tasks that end with", "count", "bar", ""], lines)]
    return "\n\n".join([*parts, table(["task without a verdict, or wrong", "status", "reason"], others)]), kept


def _end(row: Row) -> str:
    if row.status in ("ok", "wrong") and row.metrics.get("correct") is not None:
        return "right" if row.metrics["correct"] else "wrong"
    return "refused" if row.reason or row.metrics.get("check_note") else "lost"


def _without(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    for row in rows:
        if _end(row) != "right":
            yield row, row.reason or str(row.metrics.get("check_note", ""))


if __name__ == "__main__":
    sys.exit(main())
