"""CUDA events on a stream around one call: where stamps cannot be had, because the GPU's timer is too coarse.

The flush keeps the GPU busy for tens of microseconds, in which the host queues the call; a call that takes the host
longer is timed with its launch gaps. An event pair reads about 3 us more than a kernel lasts, and that is not taken
off here; nor is the offset of 50 to 150 ns between one run and the next.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from runner.measure.flush import reading_flush

IN_FLIGHT = 50  # samples queued between two synchronisations: the host stays ahead, the queue stays short


class CudaEvents:
    """Samples of ``call`` on the current stream."""

    name = "cuda_events"

    def __init__(self, call: Callable[[], object], reset: Callable[[], None] | None = None, *, cold_l2: bool) -> None:
        self.clocks_mhz: list[float] = []  # events do not tell
        self._call = call
        self._reset = reset or (lambda: None)
        self._flush = reading_flush() if cold_l2 else lambda: None
        self._pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(IN_FLIGHT)
        ]

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            pairs = self._pairs[: count - len(times)]
            for start, end in pairs:
                self._reset()
                self._flush()
                start.record()
                self._call()
                end.record()
            torch.cuda.synchronize()
            times += [start.elapsed_time(end) * 1e3 for start, end in pairs]
        return times
