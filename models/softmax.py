"""Softmax over the last dimension: y_j = exp(x_j - m) / sum_k exp(x_k - m), with m the largest x of the row.

Backward: dx_j = y_j (dy_j - sum_k y_k dy_k), where y is the stored result of the forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

from .layout import WithLayout
from .passes import WithPasses
from .rounding import FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor

# Below this, exp is 0 even in float64.
LOWEST_EXPONENT = -746.0


@dataclass(frozen=True, kw_only=True)
class Softmax(WithPasses, WithLayout):
    """y = softmax(x) of each row, or the gradient dx of x from the gradient dy of y; all tensors are [rows, cols]."""

    rows: Size  # independent rows
    cols: Size  # elements of a row
    pass_: Literal["fwd", "bwd"]  # fwd: y from x; bwd: dx from y and dy, without the forward

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols]; for bwd also dy [rows, cols]."""
        x = draw(self.rows, self.cols)
        return (x,) if self.pass_ == "fwd" else (x, draw(self.rows, self.cols))

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [rows, cols] for fwd, dx [rows, cols] for bwd.

        All errors of a correct y are relative: one rounding to ``dtype``; the last bits of exp and of the division; the
        error of the sum; and the error of the exponent x - m, which is multiplied by |x - m|. The exponent has two
        roundings: one of the difference, and one of its conversion to a power of two.

        The sum has cols positive terms in any order. In the worst order, one after the other, its error is a random
        walk with a standard deviation of cols^(1/2) / 4 units, since each step rounds a partial sum uniformly. Four
        standard deviations are allowed.

        A correct dx uses y with its error e. So it has an error of e |dy - s|, with s = sum y dy, and y times the error
        of s. The latter is sum e |dy|, plus the error of the summation, as above but with sum y |dy|. Then dx is
        rounded. PyTorch computes y dy - y s, and rounds y dy to ``dtype`` before the sum: one rounding for each of the
        two products.
        """
        x = inputs[0].double()
        exponent = (x - x.amax(-1, keepdim=True)).clamp(min=LOWEST_EXPONENT)
        weight = exponent.exp()
        y = weight / weight.sum(-1, keepdim=True)
        unit, floor = ARITHMETIC[self.dtype], FLOOR[self.dtype]
        summed = (4 + sqrt(self.cols)) * unit
        rtol = UNIT[self.dtype] + summed
        atol = 2 * unit * exponent.abs() * y + floor
        of_y = f"({rtol:.1e} + {2 * unit:.1e} |x - max x|)"
        if self.pass_ == "fwd":
            return (Expected(name="y", value=y, atol=atol, rtol=rtol, tolerance=f"{of_y} |r|"),)
        dy = inputs[1].double()
        centred = dy - (y * dy).sum(-1, keepdim=True)
        error = atol + rtol * y
        of_products = UNIT[self.dtype] * y * (dy.abs() + (dy - centred).abs())
        of_sum = ((error + summed * y) * dy.abs()).sum(-1, keepdim=True) + of_products.sum(-1, keepdim=True)
        rtol = UNIT[self.dtype] + 4 * unit
        return (
            Expected(
                name="dx",
                value=y * centred,
                atol=error * centred.abs() + of_products + y * of_sum + floor,
                rtol=rtol,
                tolerance=f"{rtol:.1e} |r| + e |dy - s| + y sum e |dy| + p + y sum p, s = sum y dy, e = {of_y} y, "
                f"p = {UNIT[self.dtype]:.1e} y (|dy| + |s|)",
            ),
        )

    def flops(self) -> int:
        """5 per element (max, subtract, exp, sum, divide), or 4 for bwd (multiply, sum, subtract, multiply)."""
        return (5 if self.pass_ == "fwd" else 4) * self.rows * self.cols

    def bytes_min(self) -> int:
        """Input x, read once, and output y, written once; for bwd y, dy and dx."""
        return (2 if self.pass_ == "fwd" else 3) * self.rows * self.cols * ITEMSIZE[self.dtype]
