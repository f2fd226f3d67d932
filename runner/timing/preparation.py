"""What comes before each timed call: its inputs as they were, and an L2 cache without what the last call left in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor

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


SHARE = 1 / 64  # of the GPU's memory, and a quarter of what is free, that copies and their outputs may take
ALIGNED = 512  # bytes, as torch's own allocator does it
PAGE = 2 * 2**20  # bytes: a copy begins anywhere in one, for large blocks of the allocator all begin with one
SEED = 0


class BufferSets:
    """``inputs`` as they are, and copies of them: ``count`` buffer_sets in all, or fewer where memory is short.

    Calls that share a ``BufferSets`` have the same input and output buffers. An input that is not contiguous stays.
    """

    def __init__(self, inputs: Sequence[Tensor] = (), count: int = 1) -> None:
        self._inputs = [tensor for tensor in inputs if tensor.is_cuda and tensor.is_contiguous() and tensor.numel()]
        self._copies = self._copied(_affordable(self._inputs, count) - 1 if self._inputs else 0)
        self._pools: list[Any] = [torch.cuda.graph_pool_handle() for _ in range(1 + len(self._copies))]

    def __len__(self) -> int:
        return len(self._pools)

    @contextmanager
    def at(self, index: int) -> Iterator[Any]:
        """The inputs lie at place ``index``, counted round, as long as this lasts. The pool of memory for the rest."""
        place = index % len(self)
        if place == 0:
            yield self._pools[0]
            return
        here = [tensor.data for tensor in self._inputs]
        try:
            for tensor, other in zip(self._inputs, self._copies[place - 1], strict=True):
                tensor.data = other
            yield self._pools[place]
        finally:
            for tensor, data in zip(self._inputs, here, strict=True):
                tensor.data = data

    def first(self) -> BufferSets:
        """The inputs as they are, with their pool of memory, and no copies."""
        alone = copy(self)
        alone._copies, alone._pools = [], self._pools[:1]
        return alone

    def leave(self) -> None:
        """All buffer_sets but the first, whose memory goes back to the driver."""
        self._copies, self._pools = [], self._pools[:1]
        torch.cuda.empty_cache()

    def pointers(self) -> set[int]:
        """Where the memory of each input and of each copy begins."""
        every = [*self._inputs, *(other for place in self._copies for other in place)]
        return {tensor.untyped_storage().data_ptr() for tensor in every}

    def _copied(self, count: int) -> list[list[Tensor]]:
        chance = random.Random(SEED)
        return [
            [_copy(tensor, ALIGNED * chance.randrange(PAGE // ALIGNED)) for tensor in self._inputs]
            for _ in range(count)
        ]


def _affordable(inputs: Sequence[Tensor], count: int) -> int:
    """BufferSets that there is memory for, where outputs are about as large as inputs."""
    free, whole = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # what torch would give back
    taken = 2 * sum(tensor.nbytes for tensor in inputs)
    return min(count, 1 + int(min(SHARE * whole, free / 4) / taken))


def _copy(tensor: Tensor, offset: int) -> Tensor:
    """A copy that begins ``offset`` bytes into a block of its own."""
    block = torch.empty(offset + tensor.nbytes, dtype=torch.uint8, device=tensor.device)
    other = block[offset:].view(tensor.dtype).view(tensor.shape)
    return other.copy_(tensor.detach())
