"""The zero of stamps, read again after each series: whether it still is where it was when they were calibrated.

When another process makes a CUDA context on this GPU, or ends with one, kernels within this process's graphs follow
each other 0.35 us sooner (on H200s: one that does nothing reads 1.19 instead of 1.56 us, any other kernel as much
less), until this process next launches a graph that is new. A series taken meanwhile is as steady as any other, and too
short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from runner.measure import calibration
from runner.measure.flush import preparation
from runner.measure.stamped_graphs import StampedGraphs
from runner.measure.statistics import trimmed_mean
from runner.measure.verdict import ZERO_MOVED_US

CAPTURES = 10
AT_FIRST, AGAIN = 200, 20  # samples: 4 ms once a process, and half of one after each series
TRIES = 3

Result = TypeVar("Result")


def undisturbed(take: Callable[[], Result]) -> tuple[Result, float]:
    """What ``take`` gives, and by how many microseconds the zero has moved; taken anew while it is found to have."""
    _zero_us()
    for _ in range(TRIES - 1):
        taken, moved_us = take(), shift_us()
        if moved_us > -ZERO_MOVED_US:
            return taken, moved_us
        settle()
    return take(), shift_us()


def shift_us() -> float:
    """By how much a kernel that does nothing reads more than when this process first asked."""
    return trimmed_mean(_null().samples(AGAIN)) - _zero_us()


def settle() -> None:
    """Launches are as they are after any other capture."""
    _graphs(captures=1).samples(1)


@cache
def _zero_us() -> float:
    settle()
    _null().samples(AGAIN)
    return trimmed_mean(_null().samples(AT_FIRST))


@cache
def _null() -> StampedGraphs:
    return _graphs(CAPTURES)


def _graphs(captures: int) -> StampedGraphs:
    before = preparation(None, cold_l2=False)
    return StampedGraphs(calibration.launch_null, before, captures=captures, constant_us=0.0)
