"""A kernel that is built and loaded: what both builders give back."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import torch

FREE_SHARED = 48 * 1024  # bytes a block may have without being allowed more: CUDA C++ Programming Guide


class BuildFailed(Exception):
    """A compiler would not have a source. The first line says what it said first; all of it follows."""


class Kernel(ABC):
    """A kernel on one device. Call it to launch it there, on torch's current stream; it may be captured in a graph.

    Every argument of a kernel has eight bytes, a pointer or a ``long long``, which is what an ``int`` is passed as: so
    both builders pass them alike, and no size is cut off. A kernel of clusters says so itself, by ``__cluster_dims__``.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._shared = FREE_SHARED
        self._threads = threading.local()

    def __call__(self, grid: int | tuple[int, int, int], threads: int, *arguments: int, shared: int = 0) -> None:
        """Launch ``grid`` blocks of ``threads``, each with ``shared`` bytes of dynamic shared memory.

        Raises:
            RuntimeError: the driver refuses, or an earlier kernel has failed; the message begins with "CUDA error".
            Unsupported: no block of this GPU has that much shared memory.

        """
        if torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                return self(grid, threads, *arguments, shared=shared)
        if not hasattr(self._threads, "entered"):
            self._enter_thread()
            self._threads.entered = True
        if shared > self._shared:
            self._allow_shared(shared)
            self._shared = shared
        try:
            self._launch((grid, 1, 1) if isinstance(grid, int) else grid, threads, shared, arguments)
        except Exception as error:
            raise RuntimeError(f"CUDA error: {error}") from error

    @abstractmethod
    def _enter_thread(self) -> None:
        """Before a thread's first launch."""

    @abstractmethod
    def _allow_shared(self, shared: int) -> None:
        """Let a block have ``shared`` bytes."""

    @abstractmethod
    def _launch(self, grid: tuple[int, int, int], threads: int, shared: int, arguments: tuple[int, ...]) -> None:
        """Launch on the current stream of the current device, which is this kernel's."""
