"""Memory that the blocks of a launch share, and that is as each launch needs it before it starts.

Launches that may run at the same time need separate memory. Launches on one stream run one after the other, so each
stream has one piece. So do the launches that a graph captures from one stream, but each graph has its own pieces, since
it may be replayed on any stream, beside any other graph. A graph never runs beside itself.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

import torch
from torch import Tensor

from .launch import each_time

PIECE = 128  # bytes; a piece is a multiple
RESERVED_CAPTURES = 40  # captures for which a launch outside a capture reserves memory


class StreamMemory:
    """The pieces of memory of one device. A piece is zeros at first; each launch leaves it ready for the next."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._of_stream: dict[int, Tensor] = {}
        self._of_capture: dict[tuple[int, int], Tensor] = {}  # by capture and stream, of captures that may go on
        self._reserve: list[Tensor] = []  # all used but the last; never freed, since a graph does not report its end
        self._next = 0  # the first unused byte of the last one

    def take(self, size: int) -> Tensor:
        """Return int32 of ``size`` bytes, or more, for a launch on the current stream: zeros, or as the last left it.

        Keep the tensor until the launch. Another thread may replace it by a larger one, and then it would be freed.
        """
        size = -(-size // PIECE) * PIECE
        with self._lock:  # threads may share a stream, and captures share the reserve
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
            if torch._C._cuda_isCurrentStreamCapturing():
                key = _capture_of(stream), stream
                mine = self._of_capture.get(key)
                if mine is None or mine.nbytes < size:
                    mine = self._of_capture[key] = self._captured(size)
                return mine
            mine = self._of_stream.get(stream)
            if mine is not None and mine.nbytes >= size and not self._of_capture:
                return mine
            self._of_capture.clear()  # a capture of another thread then takes another piece, which is correct too
            self._refill(size)
            if mine is None or mine.nbytes < size:
                mine = self._of_stream[stream] = self._zeros(size)
            return mine

    def _captured(self, size: int) -> Tensor:
        if not self._reserve or self._next + size > self._reserve[-1].nbytes:
            return self._zeros(size)  # filled by a node of the graph: correct, and 2 us slower
        mine = self._reserve[-1][self._next // 4 : (self._next + size) // 4]
        self._next += size
        return mine

    def _refill(self, size: int) -> None:
        if self._reserve and self._reserve[-1].nbytes - self._next >= RESERVED_CAPTURES // 2 * size:
            return
        self._reserve.append(self._zeros(RESERVED_CAPTURES * size))
        self._next = 0
        torch.cuda.current_stream().synchronize()  # other streams will use it

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size // 4, dtype=torch.int32, device=self.device)


def _capture_of(stream: int) -> int:
    """Return the id of the capture that ``stream`` takes part in. No two captures of a process have the same id."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    ask = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    if code := ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None):
        raise RuntimeError(f"cuStreamGetCaptureInfo: CUDA error {code}")
    return number.value


def counters(like: Tensor, count: int) -> Tensor:
    """Return ``count`` int32 counters for a launch on the device of ``like``. They are 0, and 0 again after it."""
    if torch.compiler.is_compiling() or not like.is_cuda:
        return each_time(torch.zeros, count, dtype=torch.int32, device=like.device)
    return each_time(_taken, like.device.index, 4 * count)


def _taken(index: int, size: int) -> Tensor:
    return _counters_of(index).take(size)


@cache
def _counters_of(index: int) -> StreamMemory:
    return StreamMemory(torch.device("cuda", index))
