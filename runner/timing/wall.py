"""The host's clock, for cases that run on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from runner.timing.call_outputs import tensors

SHORTEST_SAMPLE_NS = 20_000  # what is taken off for the clock's own cost, about 100 ns, is then below 1 %
OFTEN = 100  # the shortest of so many readings of nothing is what every sample has in it at least
TRIES = 3  # the shortest counts: a call of 1 us that was interrupted once would else be timed singly, 5 % too long


class PerfCounter:
    """Times several calls at once where one is too short for the clock, unless each needs a ``reset`` before it.

    What the clock reads where nothing happens is taken off each sample: 0.1 us, of which single calls have all.
    ``clock`` is the clock, in nanoseconds; tests bring their own.
    """

    name = "perf_counter"

    def __init__(
        self,
        call: Callable[[], object],
        reset: Callable[[], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._call = call
        self._reset = reset
        self._clock = clock
        self.calls_per_sample = 1
        self._nothing_ns = min(self._nothing() for _ in range(OFTEN))
        while reset is None and (elapsed := min(self._elapsed_ns() for _ in range(TRIES))) < SHORTEST_SAMPLE_NS:
            wanted = int(1.2 * self.calls_per_sample * SHORTEST_SAMPLE_NS / max(elapsed, 1))
            self.calls_per_sample = max(2 * self.calls_per_sample, wanted)

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        elapsed = [self._elapsed_ns() for _ in range(count)]
        return [max(0, ns - self._nothing_ns) / self.calls_per_sample / 1e3 for ns in elapsed]

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        if self._reset is not None:
            self._reset()
        yield tensors(self._call())

    def _nothing(self) -> int:
        inner = range(1)
        start = self._clock()
        for _ in inner:
            pass
        return self._clock() - start

    def _elapsed_ns(self) -> int:
        call, inner = self._call, range(self.calls_per_sample)
        if self._reset is not None:
            self._reset()
        start = self._clock()
        for _ in inner:
            call()
        return self._clock() - start
