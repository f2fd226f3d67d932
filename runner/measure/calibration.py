"""What an instrument reads where nothing happens, so that it can be taken off. Once per process and form."""

from __future__ import annotations

import statistics
import time
from functools import cache

import torch

from runner.measure import witness
from runner.measure.flush import preparation
from runner.measure.gpu_kernels import null, spin
from runner.measure.stamped_graphs import StampedGraphs
from runner.measure.stamped_stream import StampedStream
from runner.measure.statistics import trimmed_mean

SAMPLES = 400
WARMUP = 100
COOLING_S = 0.2  # after a spell at the power limit, whose clock would else be taken for the unloaded one
SPIN_CYCLES = 20_000  # about 10 us in which nothing but one warp runs: no power limit acts


@cache
def graph_constant_us(*, cold_l2: bool, captures: int) -> float:
    """Subtracted from each sample of ``StampedGraphs``: a null kernel then reads what CUPTI gives it."""
    return _constant_us(
        StampedGraphs(launch_null, preparation(None, cold_l2=cold_l2), captures=captures, constant_us=0.0)
    )


@cache
def stream_constant_us(*, cold_l2: bool) -> float:
    """The same for ``StampedStream``."""
    return _constant_us(StampedStream(launch_null, preparation(None, cold_l2=cold_l2), constant_us=0.0))


@cache
def null_us() -> float:
    """What CUPTI gives a kernel that does nothing, its code as cold as that of any other; 0 if it cannot be asked."""
    seen = witness.observe(launch_null, preparation(None, cold_l2=True), calls=SAMPLES)
    return seen.span_us if seen else 0.0


@cache
def unloaded_mhz() -> float:
    """Clock of the multiprocessors at next to no load: what a power limit is told by."""
    torch.cuda.synchronize()
    time.sleep(COOLING_S)
    spinning = StampedGraphs(_launch_spin, preparation(None, cold_l2=False), captures=1, constant_us=0.0)
    spinning.samples(20)
    return statistics.median(spinning.clocks_mhz)


def launch_null() -> None:
    """A call that does nothing."""
    null[(1,)](num_warps=1)


def _launch_spin() -> None:
    spin[(1,)](SPIN_CYCLES, num_warps=1)


def _constant_us(instrument: StampedGraphs | StampedStream) -> float:
    instrument.samples(WARMUP)
    return trimmed_mean(instrument.samples(SAMPLES)) - null_us()
