"""The base class of collectives: operations of several ranks on their tensors, each with a GPU of its own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

from ..timing.call import Work
from .ranks import OnRanks
from .rounding import COMMON, in_common
from .workload import ITEMSIZE, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor

ROUNDED = "(n - 1) u sum |x|"  # bound of the error of a sum of n numbers, in any order


@dataclass(frozen=True, kw_only=True)
class Collective(OnRanks):
    """One tensor x on each rank, and y from the tensors of all ranks."""

    PASSES: ClassVar[int] = 1  # in each of which a link carries (n - 1) / n of the size; 0: all of it, once

    bytes: Size  # the size of the collective, as nccl-tests counts it

    def __post_init__(self) -> None:
        unit = ITEMSIZE[self.dtype] * self.ranks
        if self.bytes % unit:
            raise ValueError(f"bytes: {self.bytes} is not allowed; give a multiple of {unit}: a part for each rank")

    @property
    def count(self) -> int:
        """Elements in ``bytes``."""
        return self.bytes // ITEMSIZE[self.dtype]

    def inputs(self, draw: Draw) -> tuple[Tensor]:
        """Return x, which has all of ``bytes``."""
        return (draw(self.count),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y from the tensors of all ranks, which come by broadcasts."""
        import torch
        import torch.distributed as dist

        (x,) = inputs
        tensors = [x if rank == self.rank else torch.empty_like(x) for rank in range(self.ranks)]
        if self.ranks > 1:
            for rank, tensor in enumerate(tensors):
                dist.broadcast(tensor, rank)
        return (self.result([tensor.double() for tensor in tensors]),)

    @abstractmethod
    def result(self, tensors: list[Tensor]) -> Expected:
        """Return y of this rank from the float64 ``tensors`` of all ranks, which may be overwritten."""

    def moved(self, value: Tensor) -> Expected:
        """Return a y of numbers that are only moved, and therefore exact."""
        return Expected("y", value, 0.0, 0.0, "exact")

    def summed(self, tensors: list[Tensor]) -> Expected:
        """Return a y of sums, each of which may be rounded in any order."""
        total, size = tensors[0].clone(), tensors[0].abs_()
        for tensor in tensors[1:]:
            total += tensor
            size += tensor.abs_()
        unit, least = (self.ranks - 1) * UNIT[self.dtype], COMMON[self.dtype] * UNIT[self.dtype]
        bound = size.mul_(unit / (1 - unit))
        deviation = bound / (2 * sqrt(self.ranks))  # of n - 1 independent roundings
        return Expected("y", total, bound, 0.0, ROUNDED, common=in_common(total[None], deviation[None], least, dim=0))

    def flops(self) -> int:
        """Return 0: it computes nothing."""
        return 0

    def bytes_min(self) -> int:
        """Return the bytes of x and y of one rank."""
        return 2 * self.bytes

    def work(self) -> Work:
        """Return the work of one rank, with the size and the factor of the collective."""
        factor = self.PASSES * (self.ranks - 1) / self.ranks if self.PASSES else 1.0
        return replace(super().work(), algo_bytes=self.bytes, bus_factor=factor)
