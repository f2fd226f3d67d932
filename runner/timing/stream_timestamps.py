"""Timestamps around a call on an ordinary stream, for what no CUDA graph can hold.

The GPU spins while the host submits the call, so launch gaps do not count as long as the host is done before the
spin is: {reset, reading flush, spin, timestamp, call, timestamp}. A call that waits for the GPU itself is timed with that wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from runner.timing.call_outputs import tensors
from runner.timing.gpu_kernels import spin
from runner.timing.rest import rest
from runner.timing.submission import spin_cycles
from runner.timing.timestamp_buffer import slots

PAIRS = 10  # samples between two reads of the timestamps


class StreamTimestamps:
    """Samples of ``call`` on the current stream, less ``constant_us``; ``before`` each comes its preparation."""

    name = "stream_timestamps"

    def __init__(self, call: Callable[[], object], before: Callable[[], object], *, constant_us: float) -> None:
        self.clocks_mhz: list[float] = []  # of the multiprocessor that timestamps, one a sample
        self._call, self._before = call, before
        self._slots = slots(PAIRS)
        self._constant_us = constant_us
        self._sample(0, 0.0)  # Triton compiles its kernels
        self._submit_s = max(self._sample(0, 0.0) for _ in range(3))

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call or a few more, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            started = time.perf_counter()
            for pair in range(PAIRS):
                self._sample(pair, self._submit_s)
            busy_s = time.perf_counter() - started
            pairs = self._slots.read()
            times += [ns / 1e3 - self._constant_us for ns, _ in pairs]
            self.clocks_mhz += [cycles / ns * 1e3 for ns, cycles in pairs]
            rest(times[-1], busy_s, partial(self._sample, 0, self._submit_s))
        return times

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        yield tensors(self._call())

    def _sample(self, pair: int, submit_s: float) -> float:
        """Seconds the host took to submit it, which was expected to take ``submit_s``."""
        self._before()
        spin[(1,)](spin_cycles(submit_s), num_warps=1)
        started = time.perf_counter()
        self._slots.begin(pair)
        self._call()
        self._slots.end(pair)
        submitted_s = time.perf_counter() - started
        torch.cuda.synchronize()
        return submitted_s
