"""The tensor of the previous rank: each rank sends its own to the next rank, around a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective import Collective
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SendRecv(Collective):
    """y = x of rank r - 1, on rank r; of the last rank, on rank 0. ``bytes``: of x."""

    PASSES = 0

    def result(self, tensors: list[Tensor]) -> Expected:
        """Return the tensor of the previous rank."""
        return self.moved(tensors[self.rank - 1])
