"""The host's clock, for cases that run on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.case import Scalar

SHORTEST_SAMPLE_NS = 20_000  # the clock's own cost, about 50 ns, is then below 0.3 %


class PerfCounter:
    """Times several calls at once where one is too short for the clock.

    ``clock`` is the clock, in nanoseconds; tests bring their own.
    """

    def __init__(self, call: Callable[[], object], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._call = call
        self._clock = clock
        self._inner = 1
        while (elapsed := self._elapsed_ns()) < SHORTEST_SAMPLE_NS:
            self._inner = max(2 * self._inner, int(1.2 * self._inner * SHORTEST_SAMPLE_NS / max(elapsed, 1)))

    def columns(self) -> dict[str, Scalar]:
        """What this instrument says of itself."""
        return {"instrument": "perf_counter", "calls_per_sample": self._inner}

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        return [self._elapsed_ns() / self._inner / 1e3 for _ in range(count)]

    def _elapsed_ns(self) -> int:
        call, inner = self._call, range(self._inner)
        start = self._clock()
        for _ in inner:
            call()
        return self._clock() - start
