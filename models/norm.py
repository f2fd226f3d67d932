"""2-norm of a matrix as a vector, or of each of its rows or columns: y = (sum x^2)^(1/2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reduction import Reduction
from .rounding import FLOOR
from .workload import ARITHMETIC, UNIT, Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Norm(Reduction):
    """y = 2-norm of x [rows, cols]: of all elements, of each column (dim = 0) or of each row (dim = 1)."""

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y: one number, [cols] or [rows].

        The squares are positive, and their sum has an error of ``spread`` units, and one unit from the squares
        themselves. The root halves it, and may be off by two units. Then y is rounded to ``dtype``.
        """
        x = inputs[0].double()
        rtol = UNIT[self.dtype] + (3 + self.spread() / 2) * ARITHMETIC[self.dtype]
        value = x.square().sum(self.axes).sqrt()
        return (Expected("y", value, atol=FLOOR[self.dtype], rtol=rtol, tolerance=f"{rtol:.1e} |r|"),)

    def flops(self) -> int:
        """2 per element: a square and an addition. The square root takes the place of one addition."""
        return 2 * self.rows * self.cols
