"""Sum of a matrix, or of each of its rows or columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reduction import Reduction
from .rounding import FLOOR
from .workload import ARITHMETIC, UNIT, Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ReduceSum(Reduction):
    """y = sum of x [rows, cols]: of all elements, of each column (dim = 0) or of each row (dim = 1)."""

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y: one number, [cols] or [rows].

        Terms of one sign give a partial sum that grows with the number of terms k. Its error is ``spread`` units of
        the sum. Terms of both signs, with the mean square q, give a partial sum of a size of (k q)^(1/2) on the way.
        Rounding it has a standard deviation of 0.43 units. Added as squares over n terms, that is 0.3 (n q)^(1/2)
        n^(1/2) units, about as much as ``spread`` / 4 times the norm of x, (n q)^(1/2). A walk may be several times
        as far from 0 on its way as it usually is, so 16 times as much is allowed.

        Then y is rounded to ``dtype``. So may be each partial sum of a thread, as in PyTorch on a CPU. Their errors,
        added as squares, are at most a unit of the norm of x.
        """
        x = inputs[0].double()
        error = self.spread() * ARITHMETIC[self.dtype]
        size = x.square().sum(self.axes).sqrt()
        rtol, of_size = UNIT[self.dtype] + error, UNIT[self.dtype] + 4 * error
        return (
            Expected(
                name="y",
                value=x.sum(self.axes),
                atol=of_size * size + FLOOR[self.dtype],
                rtol=rtol,
                tolerance=f"{rtol:.1e} |r| + {of_size:.1e} |x|, |x| the 2-norm of the terms",
            ),
        )

    def flops(self) -> int:
        """1 per addition: one fewer than elements, for each output."""
        return self.outputs * (self.terms - 1)
