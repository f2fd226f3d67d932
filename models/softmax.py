"""Softmax over the last dimension: y_j = exp(x_j - m) / sum_k exp(x_k - m), with m the largest x of the row."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from models.rounding import FLOOR
from models.workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor

# exp of anything lower is 0 even in float64.
LOWEST_EXPONENT = -746.0


@dataclass(frozen=True, kw_only=True)
class Softmax(Workload):
    """y = softmax(x) along each row, for x, y [rows, cols]."""

    rows: Size  # independent rows
    cols: Size  # elements that are normalised together

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Input x [rows, cols]."""
        return (draw(self.rows, self.cols),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Output y [rows, cols].

        All errors of a correct y are relative. One rounding to ``dtype``; some for the last bits of exp and of the
        division; those of the sum; and those of the exponent x - m, which count |x - m| times over: one for the
        difference, one for its conversion to a power of two.

        The sum is of cols positive numbers in any order. In the worst order, one after the other, its error is a
        random walk of standard deviation cols^(1/2) / 4 units (each step rounds a partial sum, and is uniform):
        four deviations are allowed.
        """
        (stored,) = inputs
        x = stored.double()
        exponent = (x - x.amax(-1, keepdim=True)).clamp(min=LOWEST_EXPONENT)
        weight = exponent.exp()
        value = weight / weight.sum(-1, keepdim=True)
        unit = ARITHMETIC[self.dtype]
        rtol = UNIT[self.dtype] + (4 + sqrt(self.cols)) * unit
        return (
            Expected(
                name="y",
                value=value,
                atol=2 * unit * exponent.abs() * value + FLOOR[self.dtype],
                rtol=rtol,
                tolerance=f"({rtol:.1e} + {2 * unit:.1e} |x - max x|) |r|",
            ),
        )

    def flops(self) -> int:
        """5 an element: max, subtract, exp, sum, divide."""
        return 5 * self.rows * self.cols

    def bytes_min(self) -> int:
        """Input x read, y written."""
        return 2 * self.rows * self.cols * ITEMSIZE[self.dtype]
