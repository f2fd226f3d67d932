"""Compare public tasks with themselves by ``runner.bench``: no pair of equal functions may be called different.

    python -m benchmarks.subject.equal_tasks FOLDER... [--bytes 262144] [--draw 60] [--device cpu] [--write]

Each task, at sizes as in ``public_tasks``, is timed beside itself and checked against itself. The folder is a copy of
the reader's, as of KernelBench.
"""

from __future__ import annotations

import argparse
import random
import sys
from functools import partial

import torch

from benchmarks.common import load_average, publish_study, table, word
from benchmarks.subject.sizes import operation, smaller
from runner import bench
from runner.tasks import formats, own_file


def main() -> None:
    """Compare all tasks and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--bytes", type=int, default=2**18, help="of inputs, weights and outputs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--draw", type=int, help="so many tasks at random; all without")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    paths = [path for folder in options.folders for path in formats.find(formats.as_place(folder))]
    paths = sorted(random.Random(options.seed).sample(paths, options.draw)) if options.draw else paths
    words: dict[str, list[str]] = {}
    for path in paths:
        said = compared(path, options)
        words.setdefault(said.partition(":")[0], []).append(f"{path.rpartition('/')[2]}{said.partition(':')[1:][1]}")
        print(f"{path}: {said}", file=sys.stderr, flush=True)
    options.load = 0
    publish_study("equal_tasks", "Public tasks beside themselves", report(words), options, load)


def compared(path: str, options: argparse.Namespace) -> str:
    """Return what ``bench`` says of a task and itself, or ``refused: `` and why."""
    file = own_file.read(path, strict=False)
    if file.refused:
        return f"refused: {file.refused}"
    try:
        task = operation(path, smaller(file, options.bytes))
        args, kwargs = task.draw(options.device, 0)
        reference = partial(task.reference, **kwargs)
        with torch.no_grad():
            result = bench(
                {"one": partial(reference), "other": partial(reference)}, *args, check=reference, device=options.device
            )
    except Exception as error:
        return f"refused: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if wrong := [line.timing.reason for line in result if line.timing.verdict == "wrong"]:
        return f"wrong: {wrong[0]}"
    return f"not timed: {result['one'].timing.reason}" if result["other"].word is None else str(result["other"].word)


def report(words: dict[str, list[str]]) -> str:
    """Return the tables: how many pairs got which word, and the tasks that are not plainly right."""
    equal = sum(len(words.get(name, ())) for name in ("same", "unclear"))
    different = sum(len(words.get(name, ())) for name in ("faster", "slower"))
    bars = [
        ("pairs compared", equal + different, "", ""),
        ("called different", different, "1 %", word(different <= 0.01 * (equal + different))),
        ("torch's own result called wrong", len(words.get("wrong", ())), "0", word("wrong" not in words)),
    ]
    rows = [(name, len(tasks)) for name, tasks in sorted(words.items())]
    others = [(name, task) for name in ("faster", "slower", "wrong", "refused") for task in words.get(name, ())]
    tables = [table(["", "count", "bar", ""], bars), table(["word", "tasks"], rows), table(["word", "task"], others)]
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
