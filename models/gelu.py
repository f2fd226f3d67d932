"""GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415): y = x * Phi(x), with Phi the normal distribution function.

    form="erf"    Phi(x) = (1 + erf(x / sqrt(2))) / 2                                       exact
    form="tanh"   Phi(x) ~ (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2                error at most 4.7e-4

Backward: dx = dy y'(x), where y' = Phi(x) + x Phi'(x) with the same form of Phi.

The two forms are different workloads: in every dtype here, the tolerance of one rejects the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING, Literal

from .layout import WithLayout
from .passes import WithPasses
from .rounding import FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor

# Phi in forms that do not cancel in the left tail, as 1 + tanh and 1 + erf do: (1 + tanh(u)) / 2 = sigmoid(2 u).
PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda x: (2 * sqrt(2 / pi) * (x + 0.044715 * x**3)).sigmoid(),
    "erf": lambda x: (-x / sqrt(2)).erfc() / 2,
}


def _slope(x: Tensor) -> Tensor:
    """Return the derivative of 2 u(x), where sigmoid(2 u) is Phi of the tanh form."""
    return 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2)


# Phi'. The product of both tails is accurate where p is close to 1; p - p^2 is not.
DENSITY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda x: PHI["tanh"](x) * PHI["tanh"](-x) * _slope(x),
    "erf": lambda x: (-(x**2) / 2).exp() / sqrt(2 * pi),
}

# Operations of the formulas as written, from left to right, with tanh, erf and exp as one operation each:
#   y  = x (1 + tanh(t)) / 2               y  = x (1 + erf(x / c)) / 2
#   dx = dy ((1 + tanh(t)) / 2 + x / 2 (1 - tanh(t)^2) c (1 + b x^2))
#                                          dx = dy ((1 + erf(x / c)) / 2 + x exp(-x^2 / 2) c)
OPERATIONS: dict[tuple[str, str], int] = {
    ("fwd", "tanh"): 9,
    ("fwd", "erf"): 5,
    ("bwd", "tanh"): 19,
    ("bwd", "erf"): 11,
}


@dataclass(frozen=True, kw_only=True)
class Gelu(WithPasses, WithLayout):
    """y = GELU(x), or the gradient dx of x from the gradient dy of y; all tensors are [rows, cols]."""

    rows: Size  # tokens
    cols: Size  # features of a token
    form: Literal["tanh", "erf"]  # the approximation of GPT-2, or the exact function
    pass_: Literal["fwd", "bwd"]  # fwd: y from x; bwd: dx from x and dy, without the forward

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols], with a standard deviation of 3 so that it reaches both tails; for bwd also dy."""
        x = draw(self.rows, self.cols, scale=3.0)
        return (x,) if self.pass_ == "fwd" else (x, draw(self.rows, self.cols))

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [rows, cols] for fwd, dx [rows, cols] for bwd.

        A correct y has one rounding to ``dtype``, and roundings of its arithmetic, with unit a. Some of these are
        relative to y. The others are absolute in Phi, where 1 + tanh or 1 + erf cancels, and so a multiple of |x| in y.
        The tolerance of 8 a is large enough for polynomials that approximate erf: that of PyTorch for CPUs has an error
        of 5.4 a in Phi. Beyond |x| = 8 both forms of Phi are 0 or 1 in float32 and nothing cancels, so |x| counts as 8.

        A correct dx has the same errors, with |dy| in place of |x|. In the erf form the second term, x Phi', is below
        1/4 and adds a few a, 12 a in all; its exponent x^2 / 2 is too small to matter. The tanh form contains
        1 - tanh^2, which has an absolute error of 2 a where tanh is close to 1. Multiplied by |x| u', this adds
        4 a |x| u'.
        """
        stored = inputs[0]
        x = stored.double()
        unit = ARITHMETIC[self.dtype]
        rtol = UNIT[self.dtype] + 4 * unit
        near = x.clamp(-8, 8)
        if self.pass_ == "fwd":
            value, scale = x * PHI[self.form](x), 8 * unit * near.abs()
            words = f"{8 * unit:.1e} min(|x|, 8)"
        else:
            dy = inputs[1].double()
            value = dy * (PHI[self.form](x) + x * DENSITY[self.form](x))
            scale, words = 12 * unit * dy.abs(), f"{12 * unit:.1e} |dy|"
            if self.form == "tanh":
                scale = scale + 2 * unit * dy.abs() * near.abs() * _slope(near)
                words += " (1 + |x| u'(x) / 3, |x| at most 8)"
        return (
            Expected(
                name="y" if self.pass_ == "fwd" else "dx",
                value=value,
                atol=scale + FLOOR[self.dtype],
                rtol=rtol,
                tolerance=f"{rtol:.1e} |r| + {words}",
            ),
        )

    def options(self) -> Mapping[str, object]:
        """Return the form."""
        return {"form": self.form}

    def flops(self) -> int:
        """9 per element for tanh and 5 for erf, 19 and 11 for bwd: each operation of the formula counts 1."""
        return OPERATIONS[self.pass_, self.form] * self.rows * self.cols

    def bytes_min(self) -> int:
        """Input x, read once, and output y, written once; for bwd x, dy and dx."""
        tensors = 2 if self.pass_ == "fwd" else 3
        return tensors * self.rows * self.cols * ITEMSIZE[self.dtype]
