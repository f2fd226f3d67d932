"""Matrix product: y = a b, y_ij = sum_k a_ik b_kj."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from .layout import WithLayout
from .rounding import COMMON, FLOOR, TF32, in_all, in_common
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, DType, Expected, Size, Stored

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Matmul(WithLayout):
    """y [m, n] = a [m, k] @ b [k, n]. With float8_e4m3fn, a and b are drawn and then rounded, and y is bfloat16."""

    dtype: Stored  # type: ignore[assignment]  # one dtype more than other workloads
    size: Size | None  # default of m, n and k; no other code reads it
    m: Size  # rows of a and y
    n: Size  # columns of b and y
    k: Size  # terms of each sum

    def __post_init__(self) -> None:
        """Set ``size`` to m, n and k if they are equal, else to None: equal products are equal cases, however given."""
        object.__setattr__(self, "size", self.m if self.m == self.n == self.k else None)

    @property
    def output_dtype(self) -> DType:
        """bfloat16 for float8, as in ``torch._scaled_mm``; else the type of the inputs."""
        return "bfloat16" if self.dtype == "float8_e4m3fn" else self.dtype

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return a [m, k] and b [k, n]. In float8, b is stored along k, as cuBLAS and tensor cores require."""
        if self.dtype == "float8_e4m3fn":
            return draw(self.m, self.k), draw(self.n, self.k).t()
        return draw(self.m, self.k), draw(self.k, self.n)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [m, n].

        The drawn terms are independent and centred, so a partial sum is a random walk of size
        w = (sum_k a_ik^2 b_kj^2)^(1/2). Rounding errors are therefore compared with w, and not with the much larger
        sum of |a_ik b_kj| (Higham & Mary 2020, "Sharper probabilistic backward error analysis for basic linear algebra
        kernels with random data", SIAM J. Sci. Comput. 42(5)). A correct y has these errors, in units of its
        arithmetic:

            accumulation   k roundings of partial sums, in any order. Their sum is a random walk again. If terms are
                           added one after the other, its standard deviation is 0.3 k^(1/2) w. Its tails are heavy,
                           since walks differ in length: the largest of 4096^2 errors was 3.8 k^(1/2) w on an H200.
                           6 k^(1/2) w is allowed, for larger matrices
            float8         the same in its coarser arithmetic. Emulated, the standard deviation is 0.2 k^(1/2) w from
                           k = 32 to 32768, and the largest of 192^2 errors is 2.1 k^(1/2) w
            storing y      one rounding of y to its dtype
            narrow dtype   cuBLAS may split k, and round the partial sums to the dtype of y before it adds them
                           (allow_bf16_reduced_precision_reduction is on by default). These are a few roundings of
                           size w; 6 are six standard deviations for two parts
            tf32           an error of at most 2^-10 in each factor. Truncation has one sign, which scales y by up to
                           2 * 2^-10; the scatter around that is 2 * 2^-10 w at six standard deviations

        The root mean square of these errors is less than k^(1/2) / 2 + 1 units of w, in 16 bits 2 units, in tf32 a
        quarter of the largest. It limits that of all elements, and a factor that they have in common.
        """
        a, b = (stored.double() for stored in inputs)
        return (self.expected_of(a, b),)

    def expected_of(self, a: Tensor, b: Tensor, over_ranks: float = 0.0) -> Expected:
        """Return what ``reference`` does. ``over_ranks``: standard deviation of what else is rounded, over w."""
        value = a @ b
        walk = (a.square() @ b.square()).sqrt()
        reduced = self.tf32 and self.dtype == "float32"
        factors = 2 * TF32 if reduced else 0.0
        unit, summed = UNIT[self.output_dtype], sqrt(self.k) * ARITHMETIC[self.dtype]
        parts = 6 * unit if unit > ARITHMETIC[self.dtype] else 0.0
        of_walk = 6 * summed + parts + factors + 6 * over_ranks
        rtol = unit + factors
        deviation = summed / 2 + unit + parts / 6 + factors / 4 + over_ranks
        least = COMMON[self.output_dtype] * unit + factors + summed / 2
        common = in_common(value[None], deviation * walk[None], least, dim=0)  # all of them are independent
        rms = in_all(deviation / of_walk, value.numel())
        return Expected(
            name="y",
            value=value,
            atol=of_walk * walk + FLOOR[self.output_dtype],
            rtol=rtol,
            tolerance=f"{rtol:.1e} |r| + {of_walk:.1e} sqrt(a^2 b^2); {common:.1e} in common, rms {rms:.2g} of it",
            rms=rms,
            common=common,
        )

    def flops(self) -> int:
        """2 m n k: a multiplication and an addition for every term."""
        return 2 * self.m * self.n * self.k

    def bytes_min(self) -> int:
        """Inputs a and b, read once, and output y, written once."""
        read = (self.m * self.k + self.k * self.n) * ITEMSIZE[self.dtype]
        return read + self.m * self.n * ITEMSIZE[self.output_dtype]
