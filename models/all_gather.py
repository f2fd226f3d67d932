"""The tensors of all ranks, one after the other, on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective import Collective
from .workload import Draw, Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AllGather(Collective):
    """y = x of rank 0, then x of rank 1, ... ``bytes``: of y, of which each rank has a part in x."""

    def inputs(self, draw: Draw) -> tuple[Tensor]:
        """Return x, a part of y."""
        return (draw(self.count // self.ranks),)

    def result(self, tensors: list[Tensor]) -> Expected:
        """Return all tensors."""
        import torch

        return self.moved(torch.cat(tensors))

    def bytes_min(self) -> int:
        """Return the bytes of x and y."""
        return self.bytes + self.bytes // self.ranks
