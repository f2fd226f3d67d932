"""Pairwise Euclidean distances: y_ij = |a_i - b_j| = (sum_k (a_ik - b_jk)^2)^(1/2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

from runner.models.rounding import FLOOR, TF32
from runner.models.workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Cdist(Workload):
    """y [n, m], the distances between the rows of a [n, d] and those of b [m, d]."""

    n: Size  # points in a
    m: Size  # points in b
    d: Size  # coordinates of a point
    p: Literal[2]  # the norm: Euclidean

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Inputs a [n, d] and b [m, d]."""
        return draw(self.n, self.d), draw(self.m, self.d)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Output y [n, m].

        Most implementations expand y^2 = |a|^2 + |b|^2 - 2 a.b, and cancel where points are close, so what can be asked
        of y^2 is an error of c units of |a|^2 + |b|^2. c = 4 for the sum of the three terms, and d^(1/2) / 2 for the
        squares: d positive numbers added in any order, whose error deviates by d^(1/2) / 4 (see softmax), twice over.
        tf32 rounds both factors of every product, or the norms themselves where they ride along in the product, as in
        torch.cdist: 2 * 2^-10 more.

        An error e of y^2 is one of e / y in y, or of sqrt(e) where y is smaller than that. Then y is rounded to
        ``dtype``, after a square root that may be off by two units.

        The reference expands as well: n m d differences in float64 would take longer than what they check. Its own
        error lies far below float32; for float64 it is of the kind allowed here, and c holds it.
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
        """The norm."""
        return {"p": self.p}

    def flops(self) -> int:
        """2 n m d, as for the product a b^T that dominates it; norms, square roots and differences are left out."""
        return 2 * self.n * self.m * self.d

    def bytes_min(self) -> int:
        """Both a and b read, y written."""
        return (self.n * self.d + self.m * self.d + self.n * self.m) * ITEMSIZE[self.dtype]
