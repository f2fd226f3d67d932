"""The host's clock around a call and the end of all that the GPU does: what a caller sees.

It is also the only truth about a call that leaves work on a stream of its own, for which nothing on the caller's waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from runner.timing.call_outputs import tensors


class HostClock:
    """Samples of ``call``, launching included, the GPU idle before; ``before`` each comes its preparation."""

    name = "host_clock"

    def __init__(self, call: Callable[[], object], before: Callable[[], object]) -> None:
        self.clocks_mhz: list[float] = []  # the host does not know
        self.submitted_us: list[float] = []  # of each sample, the time until the caller could go on
        self._call, self._before = call, before

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        return [self._sample() for _ in range(count)]

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        result = tensors(self._call())
        torch.cuda.synchronize()
        yield result

    def _sample(self) -> float:
        self._before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        self._call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        self.submitted_us.append((returned - start) * 1e6)
        return (done - start) * 1e6
