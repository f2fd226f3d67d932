"""GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415): y = x * Phi(x), with Phi the normal distribution function.

    form="erf"    Phi(x) = (1 + erf(x / sqrt(2))) / 2                                       exact
    form="tanh"   Phi(x) ~ (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2                off by at most 4.7e-4

The two are different workloads: at each dtype offered here, the tolerance of one rejects the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING, Literal

from models.rounding import FLOOR
from models.workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor

# Phi without the cancellation of 1 + tanh or 1 + erf in the left tail: (1 + tanh(u)) / 2 = sigmoid(2 u).
PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda x: (2 * sqrt(2 / pi) * (x + 0.044715 * x**3)).sigmoid(),
    "erf": lambda x: (-x / sqrt(2)).erfc() / 2,
}

# As written above, from left to right, with tanh and erf as one operation each.
OPERATIONS: dict[str, int] = {"tanh": 9, "erf": 5}


@dataclass(frozen=True, kw_only=True)
class Gelu(Workload):
    """y = GELU(x) for x, y [rows, cols]."""

    rows: Size  # tokens
    cols: Size  # features of a token
    form: Literal["tanh", "erf"]  # the approximation of GPT-2, or the exact function

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Input x [rows, cols], three times wider than usual so that both tails are reached."""
        return (draw(self.rows, self.cols, scale=3.0),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Output y [rows, cols].

        A correct y carries one rounding to ``dtype``, and those of its arithmetic, of unit a. Some are relative to y.
        The others are absolute in Phi, where 1 + tanh or 1 + erf cancels, and so a multiple of |x| in y: 8 a leaves
        room for the polynomials that stand in for erf (PyTorch's own for CPUs errs by 5.4 a in Phi).
        Beyond |x| = 8 both forms of Phi are 0 or 1 in float32, nothing cancels any more, and |x| counts as 8.
        """
        (stored,) = inputs
        x = stored.double()
        unit = ARITHMETIC[self.dtype]
        rtol = UNIT[self.dtype] + 4 * unit
        of_phi = 8 * unit
        return (
            Expected(
                name="y",
                value=x * PHI[self.form](x),
                atol=of_phi * x.abs().clamp(max=8) + FLOOR[self.dtype],
                rtol=rtol,
                tolerance=f"{rtol:.1e} |r| + {of_phi:.1e} min(|x|, 8)",
            ),
        )

    def options(self) -> Mapping[str, object]:
        """The form."""
        return {"form": self.form}

    def flops(self) -> int:
        """9 an element for tanh, 5 for erf: each +, *, /, tanh and erf of the formula counts one."""
        return OPERATIONS[self.form] * self.rows * self.cols

    def bytes_min(self) -> int:
        """Input x read, y written."""
        return 2 * self.rows * self.cols * ITEMSIZE[self.dtype]
