"""``measure=benchmark`` on a CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from runner.experiment.case import Scalar
from runner.measure.benchmark import Benchmark
from runner.models.workload import Call
from runner.timing.floors import FLOORS
from runner.timing.peak_memory import peak_bytes
from runner.timing.pinning import pinned
from runner.timing.procedure import Taken, take
from runner.timing.side_by_side import side_by_side
from runner.timing.wall import PerfCounter


def warm_up() -> None:
    """OpenMP starts its threads, and the profiler itself."""
    numbers = torch.zeros(2**16)
    with pinned(numbers.zero_):
        peak_bytes(numbers.zero_, "cpu")


def prepare(settings: Benchmark) -> None:
    """Nothing that calls could share: each has its own clock and threads."""


def measure(call: Call, settings: Benchmark) -> tuple[dict[str, Scalar], Taken, PerfCounter]:
    """The columns of the host's clock, and how much of the CPU other processes took; with the series behind them."""
    instrument = PerfCounter(call.run, call.reset)
    with pinned(lambda: instrument.samples(2)) as cpus:
        started, waited_s = time.perf_counter(), _waited_s()
        taken = take(instrument, settings)
    could_have_run_s = (time.perf_counter() - started) * torch.get_num_threads()
    columns: dict[str, Scalar] = taken.columns("wall_us", FLOORS[instrument.name]) | {
        "instrument": instrument.name,
        "calls_per_sample": instrument.calls_per_sample,
        "cpus": cpus,
        "cpu_wait_pct": 100 * (_waited_s() - waited_s) / could_have_run_s,
    }
    return columns, taken, instrument


def compare(
    calls: Sequence[tuple[Call, Mapping[str, Scalar]]], settings: Benchmark
) -> list[tuple[str, list[float]]] | None:
    """Side by side, the threads pinned as they are for one."""
    again = [PerfCounter(call.run, call.reset) for call, _ in calls]
    with pinned(lambda: [instrument.samples(2) for instrument in again]):
        return side_by_side(again, settings.rounds, settings.max_s)


def _waited_s() -> float:
    """Seconds that the threads of this process were ready to run and had no core. 0 where there is no Linux to ask."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            waited_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):  # the thread has just ended
            continue
    return waited_ns / 1e9
