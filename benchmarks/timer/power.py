"""Test whether processes agree on a call at the power limit: a bfloat16 matmul of 8192, rested and under load.

    python -m benchmarks.timer.power [--runs 5] [--sustained 5] [--write]

One process at a time uses the GPU; the next one only imports torch meanwhile. In each process the peers time the
product first, with a pause before each of them and before ours, so that none heats the GPU for the next. Then ours
gives the time of a GPU that rests half of the time (``gpu_us``). Last comes the time under continuous load
(``sustained_us``), which heats it most. One more process multiplies zeros.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import torch
from torch.utils.benchmark import Timer
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.common import ROOT, digits, load_average, page, publish, table
from benchmarks.timer.peers import defaults
from runner.device import identity
from runner.store import run_folder
from runner.timing.call import Call
from runner.timing.gpu_state import LEAD_S

SIZE = 8192
REST_S = 1.0  # about the time over which the driver's limiter averages power
LIMIT_S = 120.0  # time limit of one process; on an H200 it takes about 16 s
BAR = 0.005  # allowed distance of any run from the mean of all

RESTED, SUSTAINED = "ours, rested", "ours, sustained"
OURS = {RESTED: "gpu_us", SUSTAINED: "sustained_us"}
STATE = {  # title → column, and how it is written
    "clock, MHz": ("sm_clock_mhz", "{:.0f}"),
    "unloaded, MHz": ("unloaded_clock_mhz", "{:.0f}"),
    "power, W": ("power_w", "{:.0f}"),
    "heat, C": ("temperature_c", "{:.0f}"),
    "held down by": ("throttle", "{}"),
    "verdict": ("verdict", "{}"),
    "clock under load, MHz": ("sustained_clock_mhz", "{:.0f}"),
    "power under load, W": ("sustained_power_w", "{:.1f}"),
    "energy a call, mJ": ("energy_mj", "{:.1f}"),
}
LOADED = ("clock under load, MHz", "power under load, W", "energy a call, mJ")  # spreads of these are shown too

Run = Callable[[], object]


@dataclass(frozen=True)
class Process:
    """The results of one process."""

    worker: Mapping[str, Any]
    peers_us: Mapping[str, float]
    row: Mapping[str, Any]  # our columns, without series
    seconds: float  # after its imports


@dataclass(frozen=True)
class Spread:
    """The spread of one figure over several runs."""

    mean: float
    deviation: float  # largest distance from the mean, as a share of it
    range: float  # from the smallest to the largest, as a share of the mean

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Return the spread of ``figures``."""
        mean = fmean(figures)
        return cls(mean, max(abs(one - mean) for one in figures) / mean, (max(figures) - min(figures)) / mean)


# --- what follows from the processes; no GPU ---


def figures(processes: Sequence[Process]) -> dict[str, list[float]]:
    """Return the times of every process in us, by name: ours first, then the peers. Missing columns are left out."""
    ours = {
        name: [float(one.row[column]) for one in processes]
        for name, column in OURS.items()
        if all(column in one.row for one in processes)
    }
    return ours | {name: [one.peers_us[name] for one in processes] for name in processes[0].peers_us}


def runs_table(processes: Sequence[Process]) -> str:
    """Return a table with a line for each process: our times, and the state of the GPU."""
    lines = [
        (
            index,
            *(_shown(one.row, column, "{:.1f}") for column in OURS.values()),
            *(_shown(one.row, *how) for how in STATE.values()),
        )
        for index, one in enumerate(processes, 1)
    ]
    return table(["run", "rested, us", "sustained, us", *STATE], lines)


def spread_table(processes: Sequence[Process]) -> str:
    """Return a table with a line for each figure, and whether ours meet the bar."""
    lines = []
    for name, us in figures(processes).items():
        spread = Spread.of(us)
        met = "" if name not in OURS else "PASS" if spread.deviation <= BAR else "MISS"
        lines.append((f"{name}, us", *_percents(spread), rate(spread.mean), met, *(f"{one:.1f}" for one in us)))
    for title in LOADED:
        column, _ = STATE[title]
        if all(column in one.row for one in processes):
            some = [float(one.row[column]) for one in processes]
            lines.append((title, *_percents(Spread.of(some)), "", "", *(f"{one:.1f}" for one in some)))
    titles = ["figure", "mean", "farthest from it, %", "range, %", "TFLOP/s", f"bar {100 * BAR:g} %"]
    return table([*titles, *(f"run {index}" for index, _ in enumerate(processes, 1))], lines)


def zeros_table(zeros: Process, processes: Sequence[Process]) -> str:
    """Return a table of the run with zeros against the mean of the runs with random numbers."""
    lines: list[tuple[object, ...]] = []
    random, nothing = figures(processes), figures([zeros])
    for name, (us,) in nothing.items():
        mean = fmean(random[name])
        lines.append((f"{name}, us", f"{us:.1f}", f"{mean:.1f}", f"{us / mean:.3f}"))
    for title in ("clock, MHz", "power, W", *LOADED):
        column, how = STATE[title]
        if all(column in one.row for one in (zeros, *processes)):
            mean = fmean(float(one.row[column]) for one in processes)
            lines.append((title, how.format(zeros.row[column]), how.format(mean), f"{zeros.row[column] / mean:.3f}"))
    lines.append(
        ("verdict", zeros.row["verdict"], ", ".join(sorted({str(one.row["verdict"]) for one in processes})), "")
    )
    return table(["", "zeros", f"random, mean of {len(processes)}", "zeros / random"], lines)


def report(processes: Sequence[Process], zeros: Process, sustained_s: float, seconds: float) -> str:
    """All tables."""
    missed = [name for name, us in figures(processes).items() if name in OURS and Spread.of(us).deviation > BAR]
    met = f"MISS: {', '.join(missed)}" if missed else "PASS"
    inside_s = median(one.seconds for one in processes)
    return "\n\n".join(
        [
            f"bfloat16, {SIZE} x {SIZE} x {SIZE}, into a buffer that is there. {len(processes)} fresh processes and "
            f"one for the zeros, {inside_s:.1f} s each after its imports, {seconds:.0f} s in all.",
            f"## Over {len(processes)} runs: ours within {100 * BAR:g} % of their mean: {met}",
            spread_table(processes),
            "The bar is for the run that is farthest from the mean of all; the range is from the least to the most. "
            f"Rested is `gpu_us`, sustained `sustained_us`. Every peer begins {REST_S:g} s after the last load has "
            "ended, with its defaults, and measures whatever clock it then finds and causes; Timer and "
            "do_bench_cudagraph find what the last call left in the cache.",
            "## State of the GPU\n\n" + runs_table(processes),
            "Clock: by the multiprocessors' own counters, during the samples, and at next to no load. Power and heat "
            f"are the driver's, power as its mean over a second. Under load: of {sustained_s:g} s without a rest, "
            f"after {LEAD_S:g} s of the same; power and energy by the board's energy counter.",
            "## Zeros\n\n" + zeros_table(zeros, processes),
        ]
    )


def rate(us: float) -> str:
    """Return the TFLOP/s of the product if it takes ``us``."""
    return f"{2 * SIZE**3 / us * 1e-6:.0f}"


def _percents(spread: Spread) -> tuple[str, str, str]:
    return f"{spread.mean:.1f}", digits(100 * spread.deviation), digits(100 * spread.range)


def _shown(row: Mapping[str, Any], column: str, how: str) -> str:
    """Format a figure of ``row`` with ``how``; empty if the row has no such figure."""
    return how.format(row[column]) if row.get(column) is not None else ""


# --- one process on the GPU ---


def by_do_bench(call: Run) -> dict[str, float]:
    """With its defaults."""
    times_ms: Any = do_bench(call, return_mode="all")
    return {"do_bench, mean": fmean(times_ms) * 1e3, "do_bench, median": median(times_ms) * 1e3}


def by_do_bench_cudagraph(call: Run) -> dict[str, float]:
    """With its defaults."""
    return {"do_bench_cudagraph": float(do_bench_cudagraph(call)) * 1e3}


def by_timer(call: Run) -> dict[str, float]:
    """With its defaults."""
    return {"Timer": Timer("call()", globals={"call": call}).blocked_autorange().median * 1e6}


PEERS = (by_do_bench, by_do_bench_cudagraph, by_timer)


def product(data: str) -> Run:
    """Return a call that multiplies two matrices of "random" numbers or "zeros" into a third."""
    fill = {"random": torch.randn, "zeros": torch.zeros}[data]
    a, b = (fill(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def measure(data: str, sustained_s: float) -> Process:
    """Run all measurements in this process."""
    started, call = time.perf_counter(), product(data)
    call()  # cuBLAS makes its handle
    peers: dict[str, float] = {}
    for peer in PEERS:
        rest()
        peers |= peer(call)
    rest()
    columns = replace(defaults(), sustained_s=sustained_s).time(Call(call), "cuda")  # type: ignore[arg-type]
    row = {name: value for name, value in columns.items() if isinstance(value, str | int | float)}
    return Process(identity.describe(), peers, row, time.perf_counter() - started)


def rest() -> None:
    """Leave the GPU idle for ``REST_S``."""
    torch.cuda.synchronize()
    time.sleep(REST_S)


# --- all processes, and the page ---


def main() -> None:
    """Run the processes and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes, at least 2, beside the one for zeros")
    parser.add_argument("--sustained", type=float, default=5.0, help="seconds of load that count")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    parser.add_argument("--measure", metavar="DATA", help=argparse.SUPPRESS)  # be one of the processes
    options, load = parser.parse_args(), load_average()
    if options.measure is not None:
        if sys.stdin.readline():  # imported; and the GPU is free now. Nothing to read: the parent has gone
            print(json.dumps(vars(measure(options.measure, options.sustained))))
        return
    if options.runs < 2:
        parser.error("--runs: at least 2, or there is no spread")
    started = time.perf_counter()
    data = [*["random"] * options.runs, "zeros"]
    *processes, zeros = run_all(data, lambda what: launch(what, options.sustained))
    body = report(processes, zeros, options.sustained, time.perf_counter() - started)
    facts = {**run_folder.environment(sys.argv[1:]), "worker": processes[0].worker}
    publish("power", page("At the power limit", body, facts, load), facts, options.write)


def run_all(data: Sequence[str], start: Callable[[str], subprocess.Popen[str]]) -> list[Process]:
    """Run a process for each of ``data``, one on the GPU at a time.

    ``start`` starts a process, which measures when it reads a line from stdin. Raises RuntimeError if one fails, and
    TimeoutExpired if one hangs.
    """
    found: list[Process] = []
    waiting: subprocess.Popen[str] | None = start(data[0])
    for index, what in enumerate(data):
        process = waiting
        assert process is not None
        waiting = start(data[index + 1]) if index + 1 < len(data) else None
        try:
            output, _ = process.communicate("go\n", timeout=LIMIT_S)
            if process.returncode:
                raise RuntimeError(f"process {index + 1} of {len(data)} ended with code {process.returncode}")
        except BaseException:
            for each in filter(None, (process, waiting)):
                each.kill()
            raise
        found.append(Process(**json.loads(output.splitlines()[-1])))
        print(f"process {index + 1} of {len(data)}, {what}: {found[-1].row['gpu_us']:.1f} us rested", flush=True)
    return found


def launch(data: str, sustained_s: float) -> subprocess.Popen[str]:
    """Start a process that imports torch, and measures when it reads a line from stdin."""
    command = [sys.executable, "-m", "benchmarks.timer.power", "--measure", data, "--sustained", str(sustained_s)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
