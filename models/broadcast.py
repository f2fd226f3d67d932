"""The tensor of rank 0, on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collective import Collective
from .ranks import gathered
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Broadcast(Collective):
    """y = x of rank 0. ``bytes``: of x."""

    PASSES = 0

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return x of rank 0, which comes by a gather: not by the operation that is judged."""
        return (self.result([*gathered(inputs[0]).double()]),)

    def result(self, tensors: list[Tensor]) -> Expected:
        """Return the tensor of rank 0."""
        return self.moved(tensors[0])
