"""A kernel that is built and loaded: what both builders give back."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import torch

from .unsupported import Unsupported

Grid = int | tuple[int, int, int]

FREE_SHARED = 48 * 1024  # bytes a block may have without being allowed more: CUDA C++ Programming Guide

MOST_PORTABLE = 8  # blocks of a cluster that every GPU with clusters runs: the same


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
        self._clusters_allowed = False
        self._threads = threading.local()

    def __call__(
        self,
        grid: Grid,
        threads: int,
        *arguments: int,
        shared: int = 0,
        cluster: int = MOST_PORTABLE,
        cooperative: bool = False,
    ) -> None:
        """Launch ``grid`` blocks of ``threads``, each with ``shared`` bytes of dynamic shared memory.

        ``cluster``: blocks of a cluster; to be said where there are more than 8. ``cooperative``: all blocks run at
        once, so that they can wait for each other; or the driver refuses.

        Raises:
            RuntimeError: the driver refuses, or an earlier kernel has failed; the message begins with "CUDA error".
            Unsupported: no block of this GPU has that much shared memory, or no cluster more than 8 blocks.

        """
        if torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                return self(grid, threads, *arguments, shared=shared, cluster=cluster, cooperative=cooperative)
        self._enter()
        if shared > self._shared:
            self._allow_shared(shared)
            self._shared = shared
        if cluster > MOST_PORTABLE and not self._clusters_allowed:
            self._allow_clusters()
            self._clusters_allowed = True
        try:
            blocks = (grid, 1, 1) if isinstance(grid, int) else grid
            self._launch(blocks, threads, shared, cooperative, arguments)
        except Exception as error:
            raise RuntimeError(f"CUDA error: {error}") from error

    def runs_clusters(self, cluster: int, threads: int) -> bool:
        """Whether this GPU has room for a cluster of ``cluster`` blocks. For 8 it has, if it has clusters at all."""
        with torch.cuda.device(self.device):
            self._enter()
            try:
                self._allow_clusters()
            except Unsupported:
                return False
            return self._runs_clusters(cluster, threads)

    def _enter(self) -> None:
        if not hasattr(self._threads, "entered"):
            self._enter_thread()
            self._threads.entered = True

    @abstractmethod
    def _enter_thread(self) -> None:
        """Before a thread's first launch."""

    @abstractmethod
    def _allow_shared(self, shared: int) -> None:
        """Let a block have ``shared`` bytes."""

    @abstractmethod
    def _allow_clusters(self) -> None:
        """Let a cluster have more than 8 blocks."""

    @abstractmethod
    def _runs_clusters(self, cluster: int, threads: int) -> bool:
        """Whether one fits onto the current device, which is this kernel's."""

    @abstractmethod
    def _launch(
        self, grid: tuple[int, int, int], threads: int, shared: int, cooperative: bool, arguments: tuple[int, ...]
    ) -> None:
        """Launch on the current stream of the current device, which is this kernel's."""
