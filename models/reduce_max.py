"""Maximum of a matrix, or of each of its rows or columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reduction import Reduction
from .rounding import FLOOR
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ReduceMax(Reduction):
    """y = maximum of x [rows, cols]: of all elements, of each column (dim = 0) or of each row (dim = 1)."""

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y: one number, [cols] or [rows]. It is one of the elements, so nothing is rounded."""
        value = inputs[0].amax(self.axes).double()
        return (Expected("y", value, atol=FLOOR[self.dtype], rtol=0.0, tolerance="exact"),)

    def flops(self) -> int:
        """1 per comparison: one fewer than elements, for each output."""
        return self.outputs * (self.terms - 1)
