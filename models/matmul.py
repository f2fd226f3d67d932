"""Matrix product: y = a b, y_ij = sum_k a_ik b_kj."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from models.rounding import FLOOR, TF32
from models.workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Matmul(Workload):
    """y [m, n] = a [m, k] @ b [k, n]."""

    size: Size  # sets m, n and k, unless they are given; nothing else reads it
    m: Size  # rows of a and y
    n: Size  # columns of b and y
    k: Size  # terms of each sum

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Inputs a [m, k] and b [k, n]."""
        return draw(self.m, self.k), draw(self.k, self.n)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Output y [m, n].

        The terms are independent and centred, as drawn, so a partial sum is a random walk: it measures about
        w = (sum_k a_ik^2 b_kj^2)^(1/2), and rounding errors are to be compared with w rather than with the much larger
        sum of |a_ik b_kj| (Higham & Mary 2020, "Sharper probabilistic backward error analysis for basic linear algebra
        kernels with random data", SIAM J. Sci. Comput. 42(5)). What a correct y carries, in units of its arithmetic:

            accumulation   k roundings of partial sums, in any order: a random walk again, of standard deviation
                           0.3 k^(1/2) w one after the other, with heavy tails, since walks differ in length: the
                           largest of 4096^2 was 3.8 k^(1/2) w on an H200; 6 k^(1/2) w leaves room for more of them
            storing y      one rounding of y to ``dtype``
            narrow dtype   cuBLAS may split k, and round the part sums to ``dtype`` before adding them
                           (allow_bf16_reduced_precision_reduction is on by default): a few roundings of size w; 6
                           are six standard deviations of two such parts
            tf32           each factor off by at most 2^-10. Truncation is one-sided, which scales y by up to 2 * 2^-10;
                           the scatter about that adds to 2 * 2^-10 w at six standard deviations
        """
        a, b = (stored.double() for stored in inputs)
        value = a @ b
        walk = (a.square() @ b.square()).sqrt()
        reduced = self.tf32 and self.dtype == "float32"
        factors = 2 * TF32 if reduced else 0.0
        parts = 6 * UNIT[self.dtype] if UNIT[self.dtype] > ARITHMETIC[self.dtype] else 0.0
        of_walk = 6 * sqrt(self.k) * ARITHMETIC[self.dtype] + parts + factors
        rtol = UNIT[self.dtype] + factors
        return (
            Expected(
                name="y",
                value=value,
                atol=of_walk * walk + FLOOR[self.dtype],
                rtol=rtol,
                tolerance=f"{rtol:.1e} |r| + {of_walk:.1e} sqrt(a^2 b^2)",
            ),
        )

    def flops(self) -> int:
        """2 m n k: a multiplication and an addition for every term."""
        return 2 * self.m * self.n * self.k

    def bytes_min(self) -> int:
        """Both a and b read, y written."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * ITEMSIZE[self.dtype]
