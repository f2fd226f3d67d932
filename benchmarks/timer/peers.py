"""Timers of other projects with their defaults, and the defaults of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any

import torch
from torch.utils.benchmark import Timer
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.common import fields_of
from runner.measure.benchmark import Benchmark

WALL_CALLS, WALL_WARMUP = 100, 10

Run = Callable[[], object]

Taken = tuple[dict[str, float], dict[str, float]]  # us and seconds by method


def defaults() -> Benchmark:
    """Return the settings of ``conf/measure/benchmark.yaml``."""
    return Benchmark(**fields_of("measure", "benchmark"))


def by_peers(name: str, call: Run) -> Taken:
    """Time ``call`` with every method except ours. Return us and seconds by method."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    us: dict[str, float] = {}
    seconds: dict[str, float] = {}
    with clocked(seconds, "do_bench, mean"):
        times_ms: Any = do_bench(call, return_mode="all")
    us["do_bench, mean"], us["do_bench, median"] = fmean(times_ms) * 1e3, median(times_ms) * 1e3
    seconds["do_bench, median"] = seconds["do_bench, mean"]
    with clocked(seconds, "do_bench_cudagraph"):
        us["do_bench_cudagraph"] = float(do_bench_cudagraph(call)) * 1e3
    with clocked(seconds, "Timer"):
        us["Timer"] = Timer("call()", globals={"call": call}).blocked_autorange().median * 1e6
    with clocked(seconds, "wall clock"):
        us["wall clock"] = wall_us(call)
    torch.cuda.empty_cache()
    print(f"{name}: peers done in {sum(seconds.values()):.1f} s", flush=True)
    return us, seconds


def wall_us(call: Run) -> float:
    """Return the median time of calls that are each synchronized, by the host's clock, in us."""
    times = []
    for index in range(-WALL_WARMUP, WALL_CALLS):
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if index >= 0:
            times.append(time.perf_counter() - began)
    return median(times) * 1e6


@contextmanager
def clocked(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds spent inside to ``seconds[name]``."""
    began = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
