"""The zero of stamps, read again after each series: whether it still is where it was when they were calibrated.

When another process makes a CUDA context on this GPU, or ends with one, kernels within this process's graphs follow
each other 0.35 us sooner (on H200s: one that does nothing reads 1.19 instead of 1.87 us), until this process next gets
memory from the driver. A series taken meanwhile is as steady as any other, and too short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

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
    """Launches are as they are after any other allocation."""
    torch.cuda.empty_cache()
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):  # torch has none kept for it, so the driver is asked
        torch.empty(2**21, dtype=torch.uint8, device="cuda")


@cache
def _zero_us() -> float:
    settle()
    _null().samples(AGAIN)
    return trimmed_mean(_null().samples(AT_FIRST))


@cache
def _null() -> StampedGraphs:
    before = preparation(None, cold_l2=False)
    return StampedGraphs(calibration.launch_null, before, captures=CAPTURES, constant_us=0.0)
