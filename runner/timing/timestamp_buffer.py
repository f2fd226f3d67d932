"""Where timestamps are written, and what they say.

A pair of CUDA events in a graph carries an offset of 50 to 150 ns that is drawn anew at each capture and that no
number of replays averages out. Timestamps, which the GPU itself writes from ``%globaltimer``, carry 3 to 16 ns.
"""

from __future__ import annotations

import math
import random
from functools import cache

import torch

from runner.timing.gpu_kernels import ticks, timestamp

LINE = 16  # int64 a cache line of 128 bytes
LINES = 2**17  # 16 MiB to choose from: neighbours in memory were seen to have a steady offset
SEED = 0


@cache
def slots(pairs: int) -> TimestampBuffer:
    """The one set of ``pairs`` slots of this process: every instrument takes it, and the calibration does too.

    A call starts when the timestamp before it has reached memory, and some lines lie farther off than others: two sets
    of ten gave a null kernel 1.83 and 1.87 us on an H200, 6 ns from process to process. With one set for all, that
    is part of the constant, and comes off.
    """
    return TimestampBuffer(pairs, random.Random(SEED))


class TimestampBuffer:
    """Pairs of timestamps on random cache lines of one buffer."""

    def __init__(self, pairs: int, chance: random.Random) -> None:
        self._buffer = torch.zeros(LINE * LINES, dtype=torch.int64, device="cuda")
        lines = chance.sample(range(LINES), 2 * pairs)
        self._first = [LINE * line for line in lines[:pairs]]
        self._last = [LINE * line for line in lines[pairs:]]
        buffer_sets = [place + part for place in self._first + self._last for part in (0, 1)]
        self._gather = torch.tensor(buffer_sets, device="cuda")

    def begin(self, pair: int) -> None:
        """Launch the timestamp before a call."""
        timestamp[(1,)](self._buffer, self._first[pair], num_warps=1)

    def end(self, pair: int) -> None:
        """Launch the timestamp after it."""
        timestamp[(1,)](self._buffer, self._last[pair], num_warps=1)

    def read(self) -> list[tuple[float, float]]:
        """Return nanoseconds and SM cycles between the timestamps of every pair. Waits for the GPU."""
        values = self._buffer[self._gather].view(2, -1, 2)
        return [(float(ns), float(cycles)) for ns, cycles in (values[1] - values[0]).tolist()]


@cache
def tick_ns() -> float:
    """The step of the GPU's timer: 32 on an H100 or H200, up to 1024 on older ones, or more than can be seen."""
    count = 4096
    times = torch.zeros(count, dtype=torch.int64, device="cuda")
    ticks[(1,)](times, COUNT=count, num_warps=1)
    return smallest_step(times)


def smallest_step(times: torch.Tensor) -> float:
    """Between ``times`` that follow each other; infinite if all are the same."""
    steps = times.diff()
    return min(steps[steps > 0].tolist(), default=math.inf)


CYCLES_A_SECOND = 2e9  # about the highest clock of any GPU: at a lower one a spin is longer, which does no harm
LONGEST_S = 0.005  # a spin that waits for a call that waits for the GPU must end
SLACK = 1.5  # of the spin over the time that submitting took before


def spin_cycles(submit_s: float) -> int:
    """Spin length, in SM cycles, that hides a submission of ``submit_s`` seconds."""
    return int(min(SLACK * submit_s, LONGEST_S) * CYCLES_A_SECOND)
