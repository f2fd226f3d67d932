"""The memory through which the blocks of a launch tell each other of their slices: ``Exchange`` in exchange.cuh.

Launches that may run at once must not share it. Those of one stream do not; so a stream has one. A captured launch has
one of its own, since nobody knows on which streams its graph will be replayed, nor beside which other graph; a graph
cannot run beside itself.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

import torch
from torch import Tensor

HEAD_BYTES = 128
SLICE_BYTES = 16
STOCK = 40  # captured launches that are provided for when a launch was not captured

LIMIT_NS = 10 * 10**9  # that a block waits for another; a launch of the largest tensors takes a hundredth of it


class GaveUp(RuntimeError):
    """A kernel waited longer than ``LIMIT_NS`` for another of its blocks, and its output is wrong."""


class Exchanges:
    """All of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._turn = threading.Lock()
        self._of_stream: dict[int, Tensor] = {}
        self._stock: list[Tensor] = []  # all but the last given out; never freed, since no graph tells of its end
        self._next = 0  # byte of the last
        self._given_up = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._word = ctypes.c_int.from_address(self._given_up.data_ptr())

    @property
    def word(self) -> int:
        """Address, for the host and the device alike, of what a kernel sets when it gives up."""
        return self._given_up.data_ptr()

    def raise_if_given_up(self) -> None:
        """What an earlier launch has to tell. It costs no synchronisation.

        Raises:
            GaveUp: once for each time that it was told.

        """
        if self._word.value == 0:
            return
        self._word.value = 0
        raise GaveUp(
            f"an earlier softmax on {self._device} is wrong, and NaN in part: one of its blocks waited for another for "
            f"{LIMIT_NS / 1e9:g} s. Did other kernels fill the GPU, or did one write to memory that is not its own?"
        )

    def take(self, slices: int) -> Tensor:
        """For one launch on the current stream, of so many slices in all: zero, or as launches before have left it.

        To be kept until the launch: another thread may replace it by a larger one, and it would be given to others.
        """
        size = HEAD_BYTES + -(-slices * SLICE_BYTES // HEAD_BYTES) * HEAD_BYTES
        with self._turn:  # threads may share a stream, and captures the stock
            if torch.cuda.is_current_stream_capturing():
                return self._captured(size)
            self._provide(size)
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
            mine = self._of_stream.get(stream)
            if mine is None or mine.numel() < size:
                mine = self._of_stream[stream] = self._zeros(size)
            return mine

    def _captured(self, size: int) -> Tensor:
        if not self._stock or self._next + size > self._stock[-1].numel():
            return self._zeros(size)  # by a node of the graph: right, and 2 us slower
        mine = self._stock[-1][self._next : self._next + size]
        self._next += size
        return mine

    def _provide(self, size: int) -> None:
        if self._stock and self._stock[-1].numel() - self._next >= STOCK // 2 * size:
            return
        self._stock.append(self._zeros(STOCK * size))
        self._next = 0
        torch.cuda.current_stream().synchronize()  # it will be used on other streams

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._device)


@cache
def exchanges(index: int) -> Exchanges:
    """Those of the GPU of this index."""
    return Exchanges(torch.device("cuda", index))
