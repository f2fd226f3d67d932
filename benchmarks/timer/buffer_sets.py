"""Measure the spread between processes with different earlier allocations, with 1, 5 and 10 buffer sets.

    python -m benchmarks.timer.buffer_sets [--processes 6] [--write]

Each process first allocates and frees random blocks, as earlier cases of a grid do. Then it times the same calls, as
the runner does, with `measure.benchmark.buffer_sets` at 1, 5 and 10.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import LIMIT_S, ROOT, fields_of, load_average, page, publish, table
from runner.store import run_folder

PLACES = (1, 5, 10)
BLOCKS, KEPT = 60, 40  # blocks that are allocated before, and those of them that are not freed


@dataclass(frozen=True)
class Timed:
    """The time of one call with one number of buffer sets, in one process."""

    us: float
    seconds: float  # captures, warm-up and samples


def main() -> None:
    """Run all processes one after the other and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)  # one of the processes
    options, load = parser.parse_args(), load_average()
    if options.seed is not None:
        print(json.dumps(measured(options.seed)))
        return
    found = []
    for seed in range(options.processes):
        command = [sys.executable, "-m", "benchmarks.timer.buffer_sets", "--seed", str(seed)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    facts = {**run_folder.environment(sys.argv[1:]), "worker": found[0]["worker"]}
    by_call = [{name: [Timed(*one) for one in some] for name, some in each["timed"].items()} for each in found]
    publish("buffer_sets", page("Where buffers lie", report(by_call), facts, load), facts, options.write)


def measured(seed: int) -> dict[str, Any]:
    """Return the machine, and the fields of a ``Timed`` for each call and each of ``PLACES``."""
    import torch
    import torch.nn.functional as F

    from runner.device import identity
    from runner.measure.benchmark import Benchmark
    from runner.records.schema import build
    from runner.timing import instruments
    from runner.timing.call import Call
    from runner.timing.preparation import BufferSets
    from runner.timing.procedure import take

    chance = random.Random(seed)
    torch.manual_seed(seed)
    settings: Benchmark = build(Benchmark, fields_of("measure", "benchmark"), "measure")
    sizes = [chance.randrange(1, 60) * 2 ** chance.randrange(14, 21) for _ in range(BLOCKS)]
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    for _ in range(BLOCKS - KEPT):
        blocks.pop(chance.randrange(len(blocks)))

    def gelu(x: Any) -> Any:
        return F.gelu(x, approximate="tanh")

    def normal(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        f"gelu 2^{log2}": (gelu, (normal(2**log2),)) for log2 in (16, 18, 20, 22, 24)
    }
    calls |= {f"gelu 4096 x {cols}": (gelu, (normal(4096, cols),)) for cols in (1152, 1408)}
    calls["softmax 4096 x 1024"] = (lambda x: F.softmax(x, -1), (normal(4096, 1024),))
    calls["matmul 1024, bfloat16"] = (torch.mm, tuple(normal(1024, 1024, dtype=torch.bfloat16) for _ in range(2)))
    timed: dict[str, list[tuple[float, float]]] = {}
    for name, (function, inputs) in calls.items():
        call = Call(lambda function=function, inputs=inputs: (function(*inputs),), inputs=inputs)
        for count in PLACES:
            started = time.perf_counter()
            buffer_sets = BufferSets(inputs, count)
            instrument = instruments.build("graph_timestamps", call, settings, buffer_sets=buffer_sets)
            estimate = take(instrument, settings).summary.estimate
            timed.setdefault(name, []).append((estimate, time.perf_counter() - started))
    return {"worker": identity.describe(), "timed": timed}


def report(found: Sequence[Mapping[str, Sequence[Timed]]]) -> str:
    """Return a table with a line for each call: its time, and the spread between processes by number of buffer sets."""
    lines = []
    for name in found[0]:
        row: list[object] = [name, f"{statistics.fmean(each[name][-1].us for each in found):.3f}"]
        for index in range(len(PLACES)):
            times = [each[name][index].us for each in found]
            row.append(f"{1e3 * statistics.stdev(times):.1f} ({100 * (max(times) / min(times) - 1):.2f} %)")
        lines.append([*row, f"{1e3 * statistics.median(each[name][-1].seconds for each in found):.0f}"])
    titles = ["call", "us", *(f"sd, ns (range), {count} place{'s' * (count > 1)}" for count in PLACES), "ms a case"]
    return f"{len(found)} processes, one after the other.\n\n{table(titles, lines)}"


if __name__ == "__main__":
    main()
