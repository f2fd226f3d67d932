"""The sum of the tensors of all ranks, of which each rank gets a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective import Collective
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ReduceScatter(Collective):
    """y = part r of the sum of x over ranks, on rank r. ``bytes``: of x on each rank."""

    def result(self, tensors: list[Tensor]) -> Expected:
        """Return this rank's part of the sum."""
        return self.summed([tensor.chunk(self.ranks)[self.rank] for tensor in tensors])

    def flops(self) -> int:
        """Return the additions of a part."""
        return (self.ranks - 1) * self.count // self.ranks

    def bytes_min(self) -> int:
        """Return the bytes of x and y."""
        return self.bytes + self.bytes // self.ranks
