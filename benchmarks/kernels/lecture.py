"""Time the GELU and softmax of a Stanford lecture (CS336, 2025, lecture 6), at its size, and compare with its harness.

    python -m benchmarks.kernels.lecture [--repeats 5] [--write]

First the table of this project's command line. Then, in a separate process, the same implementations by the lecture's
harness as published: one warm-up call, then three calls that are timed one by one, with ``time.time()`` around the call
and ``torch.cuda.synchronize()``, and their mean. Then the same harness in a Python tracer, as the lecture's page was
made. The tracer walks the stack and prints the line at every line of Python, also between the readings of the clock.
"""

from __future__ import annotations

import argparse
import io
import json
import linecache
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from types import FrameType
from typing import Any, TextIO

from rich.console import Console

from benchmarks.common import LIMIT_S, ROOT, load_average, page, publish, run, table
from runner.findings.lines import Line, derive_lines
from runner.findings.names import Names
from runner.report.case_table import styled_table
from runner.store import journal

SIZE = 16384
IMPLS = ("naive", "torch", "compiled", "triton")
WORDS = [
    "workload=gelu,softmax",
    *(f"workload.{side}={SIZE}" for side in ("rows", "cols")),
    f"impl={','.join(IMPLS)}",
    "log=none",
    "-m",
]
WIDTH = 130  # characters of the terminal's table, enough for all columns

OPTIONS: dict[str, dict[str, str]] = {"gelu": {"form": "tanh"}, "softmax": {}}
TRIALS = 3  # timed calls, as in the lecture, after one warm-up call
SEED = 0

# Times on the lecture's page, in ms, of its own implementations on an H100; its CUDA C++ is left out.
PUBLISHED_MS = {
    ("gelu", "naive"): 8.1,
    ("gelu", "torch"): 1.1,
    ("gelu", "compiled"): 1.47,
    ("gelu", "triton"): 1.85,
    ("softmax", "naive"): 3.7,
    ("softmax", "torch"): 1.5,
    ("softmax", "compiled"): 1.3,
    ("softmax", "triton"): 1.9,
}

Key = tuple[str, str]  # operation and implementation
Run = Callable[[], object]


@dataclass(frozen=True)
class Harness:
    """The times of one implementation by the lecture's harness, one for each repetition."""

    op: str
    impl: str
    plain_ms: Sequence[float]
    traced_ms: Sequence[float]


# --- what follows from rows and the harness; no GPU ---


def figures_table(lines: Sequence[Line]) -> str:
    """Return a table with a line for each case: caller latency, GPU time, and speed-up."""
    titles = ["implementation", "wall, ms", "submit, ms", "device, ms", "±95 %, %", "warm, ms", "kernels"]
    rows = [
        (
            f"{line.row.case.workload.name} {line.row.case.impl.name}",
            *(_ms(line.value(column)) for column in ("latency_us", "host_us", "gpu_us")),
            _plain(line.value("interval_pct"), "{:.2f}"),
            _ms(line.value("gpu_warm_us")),
            _plain(line.value("n_kernels"), "{}"),
            _plain(line.value("first_call_s"), "{:.3f}"),
            _plain(line.value("pct_of_measured_peak"), "{:.0f} %"),
            speedup(line),
        )
        for line in lines
    ]
    return table([*titles, "first call, s", "% of measured peak", "speed-up"], rows)


def speedup(line: Line) -> str:
    """Return the speed-up as text, such as ``1.26x (1.25 to 1.27), faster``."""
    if line.baseline:
        return "1 (base)"
    if line.speedup is None:
        return ""
    interval = f" ({line.speedup_low:.4g} to {line.speedup_high:.4g})" if line.speedup_low is not None else ""
    return f"{line.speedup:.4g}x{interval}" + (f", {line.vs_baseline}" if line.vs_baseline else "")


def harness_table(lines: Sequence[Line], heard: Sequence[Harness]) -> str:
    """Return a table with a line for each implementation: published, harness here, harness in a tracer, GPU time."""
    device_us = _device_us(lines)
    rows = []
    for one in heard:
        device_ms = device_us[one.op, one.impl] / 1e3
        rows.append(
            (
                f"{one.op} {one.impl}",
                f"{PUBLISHED_MS[one.op, one.impl]:.2f}",
                *(f"{median(some):.3f} ({min(some):.3f} to {max(some):.3f})" for some in (one.plain_ms, one.traced_ms)),
                f"{device_ms:.3f}",
                *(f"{median(some) - device_ms:+.3f}" for some in (one.plain_ms, one.traced_ms)),
            )
        )
    return table(
        [
            "",
            "published, ms",
            "its harness here, ms",
            "in a tracer, ms",
            "device, ms",
            "harness - device",
            "traced - device",
        ],
        rows,
    )


def orders_table(lines: Sequence[Line], heard: Sequence[Harness]) -> str:
    """Return a table of the order of the implementations, by operation and way of timing, and the fused ones' range."""
    ways: dict[str, Mapping[Key, float]] = {
        "published, H100": PUBLISHED_MS,
        "its harness here": {(one.op, one.impl): median(one.plain_ms) for one in heard},
        "its harness here, in a tracer": {(one.op, one.impl): median(one.traced_ms) for one in heard},
        "ours, wall": {key: us / 1e3 for key, us in _column(lines, "latency_us").items()},
        "ours, device": {key: us / 1e3 for key, us in _device_us(lines).items()},
    }
    rows = []
    for op in OPTIONS:
        for way, found in ways.items():
            ms = {impl: found[op, impl] for impl in IMPLS if (op, impl) in found}
            fused = [value for impl, value in ms.items() if impl != "naive"]
            rows.append((op, way, " < ".join(sorted(ms, key=ms.__getitem__)), f"{max(fused) / min(fused):.2f}"))
    return table(["", "by", "order", "slowest of torch, compiled, triton / fastest"], rows)


def shuffles(heard: Sequence[Harness]) -> dict[str, int]:
    """Return the number of different orders that the plain harness gave for each operation."""
    orders: dict[str, set[tuple[str, ...]]] = {}
    for op, group in groupby(heard, key=lambda one: one.op):
        each = list(group)
        for turn in range(len(each[0].plain_ms)):
            order = tuple(one.impl for one in sorted(each, key=lambda one: one.plain_ms[turn]))
            orders.setdefault(op, set()).add(order)
    return {op: len(found) for op, found in orders.items()}


def terminal_text(lines: Sequence[Line]) -> str:
    """Return the table that the command prints at its end."""
    console = Console(width=WIDTH, file=io.StringIO())
    names = Names([line.row.case for line in lines])
    console.print(styled_table(lines, names, WIDTH))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n")


def report(lines: Sequence[Line], heard: Sequence[Harness]) -> str:
    """All tables."""
    repeats = len(heard[0].plain_ms)
    several = ", ".join(f"{op} {count}" for op, count in shuffles(heard).items())
    return "\n\n".join(
        [
            f"`python -m runner {' '.join(WORDS)}`",
            f"```text\n{terminal_text(lines)}\n```",
            "## The same in full\n\n" + figures_table(lines),
            "Wall: until the caller has the result. Submit: until the call returns. Device: between GPU timestamps, L2 "
            "cold; warm: with the cache as the last call left it. % of measured peak: 100 % is a plain copy on this "
            "GPU. Speed-up: from paired rounds, with its 95 % interval. First call: includes compilation, a part of "
            "which earlier runs may have cached on disk.",
            "## Beside the lecture's own harness\n\n" + harness_table(lines, heard),
            f"Medians of {repeats} repetitions of the harness, each a mean of {TRIALS} calls, with the range in "
            "brackets. Published: the lecture's implementations on its H100; here: this project's, on this GPU, in one "
            "process. The lecture compiles naive, we compile torch. In a tracer: as the lecture's page was made.",
            "## Order of the implementations, by way of timing\n\n" + orders_table(lines, heard),
            f"Different orders that the plain harness gave in {repeats} times: {several}. It adds launching, "
            "allocating and waiting to the device's time (the last columns above). A tracer also adds time for each "
            "line of Python, so an implementation with more lines looks slower.",
        ]
    )


def _device_us(lines: Sequence[Line]) -> dict[Key, float]:
    return _column(lines, "gpu_us")


def _column(lines: Sequence[Line], name: str) -> dict[Key, float]:
    return {(line.row.case.workload.name, line.row.case.impl.name): float(line.value(name)) for line in lines}


def _ms(us: object) -> str:
    return f"{us / 1e3:.4g}" if isinstance(us, int | float) else ""


def _plain(value: object, how: str) -> str:
    return "" if value is None else how.format(value)


# --- the harness, in a process of its own ---


def lecture_ms(call: Run, wait: Run) -> float:
    """Time ``call`` as published: one warm-up call, then the mean of three, in ms."""
    call()
    wait()
    times = []
    for _ in range(TRIALS):
        start = time.time()
        call()
        wait()
        end = time.time()
        times.append((end - start) * 1000)
    return fmean(times)


@contextmanager
def traced(visible: Collection[str], sink: TextIO) -> Iterator[None]:
    """Trace as the lecture's page did: every event in a ``visible`` file walks the stack and prints the line."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename in visible:
            for _ in range(2):  # the lecture's tracer walks the stack twice
                traceback.extract_stack(frame)
            if event != "return":
                print(linecache.getline(frame.f_code.co_filename, frame.f_lineno), file=sink)
        return trace

    outside = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(outside)


def harness(op: str, impl: str, size: int, device: str, repeats: int) -> Harness:
    """Time ``impl`` on a ``size`` x ``size`` matrix with the lecture's harness, plain and in a tracer."""
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    inner = import_module(f"runner.kernels.{op}.{'torch' if impl == 'compiled' else impl}")
    function = torch.compile(getattr(inner, op)) if impl == "compiled" else getattr(inner, op)
    torch.manual_seed(SEED)
    x, options = torch.randn(size, size, device=device), OPTIONS[op]

    def call() -> object:
        return function(x, **options)

    call()  # compiles; in the lecture, a check at another size compiled it
    plain = [lecture_ms(call, wait) for _ in range(repeats)]
    with open(os.devnull, "w", encoding="utf-8") as sink:
        inside = []
        for _ in range(repeats):
            with traced({__file__, str(inner.__file__)}, sink):
                inside.append(lecture_ms(call, wait))
    return Harness(op, impl, plain, inside)


def every_harness(repeats: int) -> list[Harness]:
    """Time all implementations of both operations in a separate process."""
    command = [sys.executable, "-m", "benchmarks.kernels.lecture", "--harness", "--repeats", str(repeats)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    return [Harness(**record) for record in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="times that the lecture's harness is asked")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    parser.add_argument("--harness", action="store_true", help=argparse.SUPPRESS)  # be the process with the harness
    options, load = parser.parse_args(), load_average()
    if options.harness:
        found = [harness(op, impl, SIZE, "cuda", options.repeats) for op in OPTIONS for impl in IMPLS]
        print(json.dumps([vars(one) for one in found]))
        return
    with tempfile.TemporaryDirectory(prefix="lecture-") as scratch:
        ran = run(WORDS, Path(scratch))
        facts = ran.facts
        lines = derive_lines(ran.rows, None, journal.load(ran.folder).rounds)
    untimed = [line.row for line in lines if line.time_us is None]
    if untimed:
        raise RuntimeError(f"{untimed[0].case.label} was not timed: {untimed[0].reason}")
    print(f"the command: {ran.wall_s:.1f} s", flush=True)
    body = report(lines, every_harness(options.repeats))
    title = f"GELU and softmax of the lecture: {SIZE} x {SIZE}, float32"
    publish("lecture", page(title, body, facts, load), facts, options.write)


if __name__ == "__main__":
    main()
