"""Preparation of each timed call: a reset of its inputs and an L2 flush; and buffer sets at different addresses."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor

from .call import in_turn
from .capture import per_gpu

FACTOR = 2  # buffer size over L2 size; 1 is not enough, since the cache is not strictly least-recently-used


def preparation(reset: Callable[[], None] | None, *, cold_l2: bool) -> Callable[[], None]:
    """Return a function that calls ``reset``, if given, and flushes the L2 cache if ``cold_l2``."""
    return in_turn(*filter(None, (reset, reading_flush() if cold_l2 else None)))


@per_gpu
def reading_flush(factor: float = FACTOR) -> Callable[[], object]:
    """Return a function that reads a buffer of ``factor`` times the L2 cache and writes one number.

    A flush that writes leaves dirty lines, which the timed kernel must write back: on an H200 that slowed it by up to
    15 % (softmax 4096 x 1024: 13.1 us after a reading flush, 14.1 us after a writing one).
    """
    device = torch.cuda.current_device()
    size = int(factor * torch.cuda.get_device_properties(device).L2_cache_size)
    buffer = torch.randint(0, 2**30, (size // 4,), dtype=torch.int32, device=device)
    result = torch.empty((), dtype=torch.int32, device=device)
    return lambda: torch.amax(buffer, dim=0, out=result)


SHARE = 1 / 64  # share of the GPU's memory for copies and their outputs; at most a quarter of the free memory
ALIGNED = 512  # bytes, as in torch's allocator; copies are aligned as their inputs are
PAGE = 2 * 2**20  # bytes; each copy starts at a random place in a page, since large blocks start with a page
SEED = 0


class BufferSets:
    """``inputs`` and copies of them at other addresses: ``count`` sets in total, or fewer if memory is short.

    Calls that share a ``BufferSets`` have the same input and output buffers. Inputs that are not contiguous are not
    copied.
    """

    def __init__(self, inputs: Sequence[Tensor] = (), count: int = 1) -> None:
        self._inputs = [tensor for tensor in inputs if tensor.is_cuda and tensor.is_contiguous() and tensor.numel()]
        chance = random.Random(SEED)
        self._copies = [
            [_copy(x, ALIGNED * chance.randrange(PAGE // ALIGNED) + x.data_ptr() % ALIGNED) for x in self._inputs]
            for _ in range(_affordable(self._inputs, count) - 1 if self._inputs else 0)
        ]
        self._pools: list[Any] = [torch.cuda.graph_pool_handle() for _ in range(1 + len(self._copies))]

    def __len__(self) -> int:
        return len(self._pools)

    @contextmanager
    def at(self, index: int) -> Iterator[Any]:
        """Move the inputs to set ``index`` modulo their number, and yield the memory pool for the outputs there."""
        index %= len(self)
        if index == 0:
            yield self._pools[0]
            return
        originals = [tensor.data for tensor in self._inputs]
        try:
            for tensor, copied in zip(self._inputs, self._copies[index - 1], strict=True):
                tensor.data = copied
            yield self._pools[index]
        finally:
            for tensor, data in zip(self._inputs, originals, strict=True):
                tensor.data = data

    def first(self) -> Self:
        """Return a ``BufferSets`` of the inputs without copies, with the same memory pool."""
        alone = copy(self)
        alone._copies, alone._pools = [], self._pools[:1]
        return alone

    def free_copies(self) -> None:
        """Return the memory of all copies to the driver."""
        self._copies, self._pools = [], self._pools[:1]
        torch.cuda.empty_cache()

    def pointers(self) -> set[int]:
        """Return the addresses of the storages of all inputs and copies."""
        return {tensor.untyped_storage().data_ptr() for buffers in (self._inputs, *self._copies) for tensor in buffers}


def _affordable(inputs: Sequence[Tensor], count: int) -> int:
    """Return the number of sets, at most ``count``, that fit in memory if outputs are as large as inputs."""
    free, total = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch can reuse this
    set_bytes = 2 * sum(tensor.nbytes for tensor in inputs)
    return min(count, 1 + int(min(SHARE * total, free / 4) / set_bytes))


def _copy(tensor: Tensor, offset: int) -> Tensor:
    """Return a copy that starts ``offset`` bytes into a new block."""
    block = torch.empty(offset + tensor.nbytes, dtype=torch.uint8, device=tensor.device)
    view = block[offset:].view(tensor.dtype).view(tensor.shape)
    return view.copy_(tensor.detach())
