"""A part of each rank's tensor for every rank: a transpose over ranks, as experts of a network need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective import Collective
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AllToAll(Collective):
    """y = part r of x of rank 0, then part r of x of rank 1, ..., on rank r. ``bytes``: of x on each rank."""

    def result(self, tensors: list[Tensor]) -> Expected:
        """Return the parts for this rank."""
        import torch

        return self.moved(torch.cat([tensor.chunk(self.ranks)[self.rank] for tensor in tensors]))
