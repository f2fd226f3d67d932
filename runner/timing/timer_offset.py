"""The zero of timestamps, read again after each series: whether it still is where it was when they were calibrated.

When another process makes a CUDA context on this GPU, or ends with one, kernels within this process's graphs follow
each other 0.35 us sooner (on H200s one that does nothing reads 1.19 instead of 1.56 us, and any other kernel as much
less), until this process has made some tens of graphs more, as it does for the next case. A series taken meanwhile is
as steady as any other, and too short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from runner.timing import calibration
from runner.timing.graph_timestamps import GraphTimestamps
from runner.timing.statistics import trimmed_mean
from runner.timing.verdict import ZERO_MOVED_US

CAPTURES = 20  # as by default: what they read has then been found out already
SAMPLES = 20  # half a millisecond, after each series
TRIES = 3
MOST = 8  # times CAPTURES that are made to settle it; some tens were enough where it was seen

Result = TypeVar("Result")


def undisturbed(take: Callable[[], Result]) -> tuple[Result, float]:
    """What ``take`` gives, and by how many microseconds the zero has moved; taken anew while it is found to have."""
    for _ in range(TRIES - 1):
        taken, moved_us = take(), shift_us()
        if moved_us > -ZERO_MOVED_US:
            return taken, moved_us
        settle()
    return take(), shift_us()


def shift_us() -> float:
    """By how much a kernel that does nothing reads more than when the timestamps were calibrated."""
    then_us = calibration.graph_constant_us(cold_l2=False, captures=CAPTURES) + calibration.empty_kernel_us()
    return trimmed_mean(_null().samples(SAMPLES)) - then_us


def settle() -> None:
    """Captures, until the driver has had to get memory for them: launches are then as they were."""
    held: list[GraphTimestamps] = []
    while shift_us() <= -ZERO_MOVED_US and len(held) < MOST:
        held.append(_graphs())
        held[-1].samples(CAPTURES)


@cache
def _null() -> GraphTimestamps:
    return _graphs()


def _graphs() -> GraphTimestamps:
    return calibration.null_graphs(cold_l2=False, captures=CAPTURES)
