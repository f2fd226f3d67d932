"""What comes before each timed call: its inputs as they were, and an L2 cache without what the last call left in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

FACTOR = 2  # buffer over L2 size: once is not enough, since the cache is not strictly least-recently-used


def preparation(reset: Callable[[], None] | None, *, cold_l2: bool) -> Callable[[], None]:
    """``reset``, if there is one, and then the flush, if the cache is to be cold."""
    flush = reading_flush() if cold_l2 else None

    def before() -> None:
        if reset is not None:
            reset()
        if flush is not None:
            flush()

    return before


@cache
def reading_flush(factor: float = FACTOR) -> Callable[[], object]:
    """Reads a buffer ``factor`` times the size of the L2 cache, and writes one number. One a process.

    A flush that writes leaves dirty lines that the timed kernel then has to write back: that slowed it by up to
    15 % on an H200 (softmax 4096 x 1024: 13.1 us behind a reading flush, 14.1 us behind a writing one).
    """
    device = torch.cuda.current_device()
    size = int(factor * torch.cuda.get_device_properties(device).L2_cache_size)
    buffer = torch.randint(0, 2**30, (size // 4,), dtype=torch.int32, device=device)
    result = torch.empty((), dtype=torch.int32, device=device)
    return lambda: torch.amax(buffer, dim=0, out=result)
