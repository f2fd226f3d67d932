"""Memory through which the blocks of a launch exchange results of their slices: ``Exchange`` in exchange.cuh.

Launches that may run at the same time need separate memory. Launches on one stream run one after the other, so each
stream has one piece. Each captured launch has its own piece, since its graph may be replayed on any stream, beside any
other graph. A graph never runs beside itself.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

import torch
from torch import Tensor

HEAD_BYTES = 128
SLICE_BYTES = 16
RESERVED_CAPTURES = 40  # captured launches for which a launch outside a capture reserves memory

LIMIT_NS = 10 * 10**9  # how long a block waits for another; a launch on the largest tensors takes a hundredth of it


class KernelTimeout(RuntimeError):
    """A block of a kernel waited longer than ``LIMIT_NS`` for another block, and the output is wrong."""


class Exchanges:
    """The exchange memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._of_stream: dict[int, Tensor] = {}
        self._reserve: list[Tensor] = []  # all used but the last; never freed, since a graph does not report its end
        self._next = 0  # the first unused byte of the last one
        self._timed_out = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._flag = ctypes.c_int.from_address(self._timed_out.data_ptr())

    @property
    def flag_address(self) -> int:
        """Address of the int, in pinned memory, that a kernel sets to 1 when it times out."""
        return self._timed_out.data_ptr()

    def raise_if_timed_out(self) -> None:
        """Raise if an earlier launch timed out, and clear the flag. This does not synchronize.

        Raises:
            KernelTimeout: an earlier launch timed out.

        """
        if self._flag.value == 0:
            return
        self._flag.value = 0
        raise KernelTimeout(
            f"an earlier softmax on {self._device} is wrong, and NaN in part: one of its blocks waited for another for "
            f"{LIMIT_NS / 1e9:g} s. Check whether other kernels filled the GPU, or one wrote out of bounds."
        )

    def take(self, slices: int) -> Tensor:
        """Return memory for a launch of ``slices`` slices on the current stream: zeros, or as the last launch left it.

        Keep the tensor until the launch. Another thread may replace it by a larger one, and then it would be freed.
        """
        size = HEAD_BYTES + -(-slices * SLICE_BYTES // HEAD_BYTES) * HEAD_BYTES
        with self._lock:  # threads may share a stream, and captures share the reserve
            if torch.cuda.is_current_stream_capturing():
                return self._captured(size)
            self._refill(size)
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
            mine = self._of_stream.get(stream)
            if mine is None or mine.numel() < size:
                mine = self._of_stream[stream] = self._zeros(size)
            return mine

    def _captured(self, size: int) -> Tensor:
        if not self._reserve or self._next + size > self._reserve[-1].numel():
            return self._zeros(size)  # filled by a node of the graph: correct, and 2 us slower
        mine = self._reserve[-1][self._next : self._next + size]
        self._next += size
        return mine

    def _refill(self, size: int) -> None:
        if self._reserve and self._reserve[-1].numel() - self._next >= RESERVED_CAPTURES // 2 * size:
            return
        self._reserve.append(self._zeros(RESERVED_CAPTURES * size))
        self._next = 0
        torch.cuda.current_stream().synchronize()  # other streams will use it

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._device)


@cache
def exchanges(index: int) -> Exchanges:
    """Return the exchange memory of the GPU ``index``."""
    return Exchanges(torch.device("cuda", index))
