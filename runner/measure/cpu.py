"""``measure=benchmark`` on a CPU."""

from __future__ import annotations

import resource
import time

from models.workload import Call
from runner.case import Scalar
from runner.measure.benchmark import Benchmark
from runner.measure.procedure import take
from runner.measure.statistics import NO_FLOOR
from runner.measure.wall import PerfCounter


def measure(call: Call, settings: Benchmark) -> dict[str, Scalar]:
    """The columns of the host's clock, and how often other processes had the CPU meanwhile."""
    instrument = PerfCounter(call.run, call.reset)
    started, before = time.perf_counter(), _preemptions()
    taken = take(instrument, settings)
    rate = (_preemptions() - before) / (time.perf_counter() - started)
    return taken.columns("wall_us", NO_FLOOR) | {
        "instrument": instrument.name,
        "calls_per_sample": instrument.calls_per_sample,
        "preemptions_per_s": rate,
    }


def _preemptions() -> int:
    """Times that a thread of this process has lost the CPU without wanting to."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
