"""Pairwise Euclidean distances: y_ij = |a_i - b_j| = (sum_k (a_ik - b_jk)^2)^(1/2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

from .rounding import FLOOR, TF32
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Cdist(Workload):
    """y [n, m], the distances between the rows of a [n, d] and the rows of b [m, d]."""

    n: Size  # points in a
    m: Size  # points in b
    d: Size  # coordinates of a point
    p: Literal[2]  # the norm: Euclidean

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return a [n, d] and b [m, d]."""
        return draw(self.n, self.d), draw(self.m, self.d)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [n, m].

        Most implementations expand y^2 = |a|^2 + |b|^2 - 2 a.b, which cancels where points are close. So the tolerance
        of y^2 is c units of |a|^2 + |b|^2. c is 4 for the sum of the three terms, plus d^(1/2) / 2 for the squares: the
        error of a sum of d positive numbers, in any order, has a standard deviation of d^(1/2) / 4 units (see softmax),
        and two of them are allowed. tf32 rounds both factors of every product, or the norms if they are part of the
        product, as in torch.cdist. This adds 2 * 2^-10.

        An error e of y^2 is an error of e / y in y, or of sqrt(e) if y is smaller than sqrt(e). Then y is rounded to
        ``dtype``, after a square root that may be off by two units.

        The reference uses the expansion too, since n m d differences in float64 would take longer than the
        implementations. Its error is far below float32. For float64 it is of the same kind, and c allows it.
        """
        a, b = (stored.double() for stored in inputs)
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
        value = (squares - 2 * (a @ b.mT)).clamp(min=0).sqrt()
        reduced = self.tf32 and self.dtype == "float32"
        unit = ARITHMETIC[self.dtype]
        of_squares = (4 + sqrt(self.d) / 2) * unit + (2 * TF32 if reduced else 0.0)
        error = of_squares * squares + FLOOR[self.dtype]
        rtol = UNIT[self.dtype] + 2 * unit
        return (
            Expected(
                name="y",
                value=value,
                atol=error / value.maximum(error.sqrt()),
                rtol=rtol,
                tolerance=f"{rtol:.1e} |r| + e / max(|r|, sqrt(e)), e = {of_squares:.1e} (|a|^2 + |b|^2)",
            ),
        )

    def options(self) -> Mapping[str, object]:
        """Return the norm p."""
        return {"p": self.p}

    def flops(self) -> int:
        """2 n m d, as for the product a b^T that dominates. Norms, square roots and differences are left out."""
        return 2 * self.n * self.m * self.d

    def bytes_min(self) -> int:
        """Inputs a and b, read once, and output y, written once."""
        return (self.n * self.d + self.m * self.d + self.n * self.m) * ITEMSIZE[self.dtype]
