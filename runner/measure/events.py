"""CUDA events on a stream, around one call each, the L2 cache emptied before it.

The flush reads, and does not write: a writing flush leaves dirty lines that the timed kernel then has to write
back, which slows it by up to 15 % (measured on an H200). It also keeps the GPU busy for tens of microseconds, in
which the host queues the call; a call that takes the host longer than that is timed with its launch gaps.
An event pair reads about 3 us more than the kernel's own time; that constant is not subtracted here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from runner.case import Scalar

IN_FLIGHT = 50  # samples queued between two synchronisations: the host stays ahead, the queue stays short
FLUSH_FACTOR = 2  # buffer over L2 size: once is not enough, since the cache is not strictly least-recently-used


class CudaEvents:
    """Times ``call`` on the current stream."""

    def __init__(self, call: Callable[[], object], *, cold_l2: bool) -> None:
        self._call = call
        self._flush = read_flush() if cold_l2 else lambda: None
        self._pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(IN_FLIGHT)
        ]

    def columns(self) -> dict[str, Scalar]:
        """What this instrument says of itself."""
        return {"instrument": "cuda_events", "calls_per_sample": 1}

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            pairs = self._pairs[: count - len(times)]
            for start, end in pairs:
                self._flush()
                start.record()
                self._call()
                end.record()
            torch.cuda.synchronize()
            times += [start.elapsed_time(end) * 1e3 for start, end in pairs]
        return times


def read_flush() -> Callable[[], object]:
    """Reads a buffer twice the size of the L2 cache, so that nothing older is left in it."""
    device = torch.cuda.current_device()
    size = FLUSH_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.randint(0, 2**30, (size // 4,), dtype=torch.int32, device=device)
    result = torch.empty((), dtype=torch.int32, device=device)
    return lambda: torch.amax(buffer, dim=0, out=result)
