"""CUDA events on a stream around one call: where stamps cannot be had, because the GPU's timer is too coarse.

The flush keeps the GPU busy for tens of microseconds, in which the host queues the call; a call that takes the host
longer is timed with its launch gaps. An event pair reads 3.2 to 3.9 us more than a kernel lasts, and that is not taken
off here, nor is the offset of 50 to 150 ns between one run and the next: the interval allows for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from runner.measure.call_outputs import tensors

IN_FLIGHT = 50  # samples queued between two synchronisations: the host stays ahead, the queue stays short


class CudaEvents:
    """Samples of ``call`` on the current stream; ``before`` each comes its preparation."""

    name = "cuda_events"

    def __init__(self, call: Callable[[], object], before: Callable[[], object]) -> None:
        self.clocks_mhz: list[float] = []  # events do not tell
        self._call, self._before = call, before
        self._pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(IN_FLIGHT)
        ]

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            pairs = self._pairs[: count - len(times)]
            for start, end in pairs:
                self._before()
                start.record()
                self._call()
                end.record()
            torch.cuda.synchronize()
            times += [start.elapsed_time(end) * 1e3 for start, end in pairs]
        return times

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        yield tensors(self._call())
