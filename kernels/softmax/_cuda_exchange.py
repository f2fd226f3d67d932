"""Memory through which the blocks of a launch exchange results of their slices: ``Exchange`` in exchange.cuh."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from ..stream_memory import PIECE, StreamMemory

HEAD_BYTES = PIECE
SLICE_BYTES = 16

LIMIT_NS = 10 * 10**9  # how long a block waits for another; a launch on the largest tensors takes a hundredth of it


class KernelTimeout(RuntimeError):
    """A block of a kernel waited longer than ``LIMIT_NS`` for another block, and the output is wrong."""


class Exchanges:
    """The exchange memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self._memory = StreamMemory(device)
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
            f"an earlier softmax on {self._memory.device} is wrong, and NaN in part: one of its blocks waited for "
            f"another for {LIMIT_NS / 1e9:g} s. Check whether other kernels filled the GPU, or one wrote out of bounds."
        )

    def take(self, slices: int) -> Tensor:
        """Return memory for a launch of ``slices`` slices on the current stream, as ``StreamMemory.take`` does."""
        return self._memory.take(HEAD_BYTES + slices * SLICE_BYTES)


@cache
def exchanges(index: int) -> Exchanges:
    """Return the exchange memory of the GPU ``index``."""
    return Exchanges(torch.device("cuda", index))
