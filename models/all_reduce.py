"""The sum of the tensors of all ranks, on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective import Collective
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AllReduce(Collective):
    """y = sum of x over ranks. ``bytes``: of x on each rank."""

    PASSES = 2  # to be added, and to be copied

    def result(self, tensors: list[Tensor]) -> Expected:
        """Return the sum."""
        return self.summed(tensors)

    def flops(self) -> int:
        """Return the additions that each rank makes if they share them."""
        return (self.ranks - 1) * self.count // self.ranks
