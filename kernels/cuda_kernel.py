"""A compiled and loaded kernel: the interface that both builders return."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .launch import Again, Place, Unplanned, record
from .unsupported import Unsupported

Grid = int | tuple[int, int, int]
Argument = Any  # Tensor, int, or a value of ctypes

ADDRESS = 2**32  # an integer from here on may be an address

# Both limits are from the CUDA C++ Programming Guide.
FREE_SHARED = 48 * 1024  # bytes of shared memory that a block may use without an attribute of the kernel
MOST_PORTABLE = 8  # blocks of the largest cluster that every GPU with clusters runs


class BuildFailed(Exception):
    """A compiler rejected a source. The first line holds its first error, and its whole output follows."""


class Kernel(ABC):
    """A kernel on one device. Call it to launch it there, on torch's current stream. It may be captured in a graph.

    A Python ``int`` has eight bytes: a pointer or a ``long long``, which is all that this project's own kernels take.
    So both builders pass arguments in the same way, and no size is truncated. The builder "nvrtc" also passes values of
    ctypes. A kernel that runs in clusters declares them itself, with ``__cluster_dims__``.
    """

    def __init__(self, device: int, symbol: str = "") -> None:
        self.device = device
        self.symbol = symbol  # the mangled name, which encodes the types of its parameters; "" if not known
        self._shared = FREE_SHARED
        self._clusters_allowed = False
        self._threads = threading.local()

    def __call__(
        self,
        grid: Grid,
        threads: Grid,
        *arguments: Argument,
        shared: int = 0,
        cluster: int = MOST_PORTABLE,
        cooperative: bool = False,
    ) -> None:
        """Launch the kernel.

        Args:
            grid: number of blocks, or blocks along x, y and z.
            threads: threads of a block, or threads along x, y and z, which the builder "nvrtc" alone allows.
            *arguments: tensors, whose addresses are passed, and integers, eight bytes each, or values of ctypes for the
                builder "nvrtc".
            shared: bytes of dynamic shared memory of a block.
            cluster: blocks of a cluster; required only above 8.
            cooperative: run all blocks at once, so that they can wait for each other. The driver refuses if they do
                not fit.

        Raises:
            RuntimeError: the driver refuses, or an earlier kernel has failed. The message begins with "CUDA error".
            Unsupported: the GPU gives a block less shared memory than that, or has no clusters of more than 8 blocks.

        """
        if torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                self(grid, threads, *arguments, shared=shared, cluster=cluster, cooperative=cooperative)
            return
        self._enter()
        if shared > self._shared:
            self._allow_shared(shared)
            self._shared = shared
        if cluster > MOST_PORTABLE and not self._clusters_allowed:
            self._allow_clusters()
            self._clusters_allowed = True
        try:
            blocks = (grid, 1, 1) if isinstance(grid, int) else grid
            addresses = (word.data_ptr() if isinstance(word, Tensor) else word for word in arguments)
            self._launch(blocks, threads, shared, cooperative, tuple(addresses))
        except Exception as error:
            raise RuntimeError(f"CUDA error: {error}") from error
        record(_unwatched, lambda place: self._again(blocks, threads, shared, cooperative, arguments, place))

    def _again(
        self,
        grid: tuple[int, int, int],
        threads: Grid,
        shared: int,
        cooperative: bool,
        arguments: tuple[Argument, ...],
        place: Callable[[Tensor], Place],
    ) -> Again:
        """Return how to launch again on other tensors."""
        words, pointers = divided(arguments, place)

        def again(addresses: list[int], _: int) -> None:
            self._enter()
            now = words.copy()
            for at, number, offset in pointers:
                now[at] = addresses[number] + offset
            self._launch(grid, threads, shared, cooperative, tuple(now))

        return again

    def runs_clusters(self, cluster: int, threads: int) -> bool:
        """Return whether this GPU can run a cluster of ``cluster`` blocks. A GPU with clusters always runs 8."""
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
        """Prepare a host thread for its first launch."""

    @abstractmethod
    def _allow_shared(self, shared: int) -> None:
        """Allow a block ``shared`` bytes of shared memory. Raises Unsupported if the GPU has less."""

    @abstractmethod
    def _allow_clusters(self) -> None:
        """Allow clusters of more than 8 blocks. Raises Unsupported if the GPU has none."""

    @abstractmethod
    def _runs_clusters(self, cluster: int, threads: int) -> bool:
        """Return whether such a cluster fits on the current device, which is the kernel's device."""

    @abstractmethod
    def _launch(
        self, grid: tuple[int, int, int], threads: Grid, shared: int, cooperative: bool, arguments: tuple[Argument, ...]
    ) -> None:
        """Launch on the current stream of the current device, which is the kernel's device."""


def divided(
    arguments: tuple[Argument, ...], place: Callable[[Tensor], Place]
) -> tuple[list[Argument], list[tuple[int, int, int]]]:
    """Return the arguments with None for each tensor, and for each tensor where it is: argument, tensor, bytes.

    Raises Unplanned for an integer that may be an address, which a plan must not keep.
    """
    pointers = [(at, *place(word)) for at, word in enumerate(arguments) if isinstance(word, Tensor)]
    if any(isinstance(word, int) and word >= ADDRESS for word in arguments):
        raise Unplanned("an integer that may be an address")
    return [None if isinstance(word, Tensor) else word for word in arguments], pointers


def _unwatched() -> bool:
    """Return whether ``Kernel.__call__`` is the one above, which nobody has replaced in order to see launches."""
    return Kernel.__call__.__module__ == __name__
