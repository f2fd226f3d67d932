"""``measure=benchmark`` on a CPU."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from models.workload import Call
from runner.case import Scalar
from runner.measure.benchmark import Benchmark
from runner.measure.procedure import take
from runner.measure.statistics import NO_FLOOR
from runner.measure.wall import PerfCounter


def measure(call: Call, settings: Benchmark) -> dict[str, Scalar]:
    """The columns of the host's clock, and how much of the CPU other processes took meanwhile."""
    instrument = PerfCounter(call.run, call.reset)
    started, waited_s = time.perf_counter(), _waited_s()
    taken = take(instrument, settings)
    could_have_run_s = (time.perf_counter() - started) * torch.get_num_threads()
    return taken.columns("wall_us", NO_FLOOR) | {
        "instrument": instrument.name,
        "calls_per_sample": instrument.calls_per_sample,
        "cpu_wait_pct": 100 * (_waited_s() - waited_s) / could_have_run_s,
    }


def _waited_s() -> float:
    """Seconds that the threads of this process were ready to run and had no core. 0 where there is no Linux to ask."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            waited_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):  # the thread has just ended
            continue
    return waited_ns / 1e9
