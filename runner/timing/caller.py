"""What a caller sees by the host's clock: the time until it may go on, and until the result is there."""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.experiment.case import Scalar
from runner.timing.host_clock import HostClock
from runner.timing.statistics import trimmed_mean

MOST = 50  # calls
LONGEST_S = 0.1  # spent on them, though never on fewer than FEWEST
FEWEST = 5


def as_seen_by_caller(call: Callable[[], object], before: Callable[[], object]) -> dict[str, Scalar]:
    """``host_us``: until ``call`` returns. ``latency_us``: until the GPU is done. The GPU is idle before."""
    clock = HostClock(call, before)
    done: list[float] = []
    began = time.perf_counter()
    while len(done) < MOST and (len(done) < FEWEST or time.perf_counter() - began < LONGEST_S):
        done += clock.samples(1)
    return {"host_us": trimmed_mean(clock.submitted_us), "latency_us": trimmed_mean(done)}
