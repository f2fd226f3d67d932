"""CUDA events on a stream around one call: where timestamps cannot be had, because the GPU's timer is too coarse.

The GPU spins while the host submits the call, so the launch gap before it does not count. An event pair reads 3.2 to
4.1 us more than a kernel lasts, and that is not taken off here, nor is the offset of 50 to 150 ns between one run and
the next: the interval allows for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from runner.timing.call_outputs import tensors
from runner.timing.rest import rest
from runner.timing.submission import spin_cycles

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
        self._sample(*self._pairs[0], 0.0)  # the first call may load something
        torch.cuda.synchronize()
        self._submit_s = max(self._sample(*pair, 0.0) for pair in self._pairs[:3])

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            pairs, started = self._pairs[: count - len(times)], time.perf_counter()
            for start, end in pairs:
                self._sample(start, end, self._submit_s)
            torch.cuda.synchronize()
            busy_s = time.perf_counter() - started
            times += [start.elapsed_time(end) * 1e3 for start, end in pairs]
            rest(times[-1], busy_s, partial(self._sample, *pairs[0], self._submit_s))
        return times

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        yield tensors(self._call())

    def _sample(self, start: torch.cuda.Event, end: torch.cuda.Event, submit_s: float) -> float:
        """Seconds the host took to submit it, which was expected to take ``submit_s``."""
        self._before()
        torch.cuda._sleep(spin_cycles(submit_s))  # no kernel of ours: those need Triton
        started = time.perf_counter()
        start.record()
        self._call()
        end.record()
        return time.perf_counter() - started
