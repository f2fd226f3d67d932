"""Cumulative sum of each row: y_ij = sum_{k <= j} x_ik."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rounding import FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Cumsum(Workload):
    """y = cumsum(x) along each row, for x and y [rows, cols]."""

    rows: Size  # independent rows
    cols: Size  # elements of a row

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols]."""
        return (draw(self.rows, self.cols),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [rows, cols].

        Whatever the order, y_j takes j - 1 additions. Each rounds the sum of some consecutive elements. A rounding has
        a standard deviation of 0.43 units of that sum (see softmax), and roundings are independent, so their sum is a
        random walk (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput.
        41(5)). If elements are added one after the other, each y_k, k <= j, is rounded: a standard deviation of at most
        0.43 j^(1/2) m units, with m the largest |y_k| or |x_k|. Seven of them are allowed, 3 j^(1/2) m units, for large
        matrices. In a tree most sums are of a few elements. The others are few, and each is the difference of two y, so
        at most 2 m.

        Then y is rounded to ``dtype``.
        """
        import torch

        x = inputs[0].double()
        y = x.cumsum(-1)
        largest = x.abs().maximum(y.abs()).cummax(-1).values
        count = torch.arange(1, self.cols + 1, dtype=torch.float64, device=x.device)
        unit, rtol = 3 * ARITHMETIC[self.dtype], UNIT[self.dtype]
        atol = unit * count.sqrt() * largest + FLOOR[self.dtype]
        tolerance = f"{rtol:.1e} |r| + {unit:.1e} j^(1/2) max over k <= j of |r_k| and |x_k|"
        return (Expected(name="y", value=y, atol=atol, rtol=rtol, tolerance=tolerance),)

    def flops(self) -> int:
        """1 per element but the first of each row."""
        return self.rows * (self.cols - 1)

    def bytes_min(self) -> int:
        """Input x, read once, and output y, written once."""
        return 2 * self.rows * self.cols * ITEMSIZE[self.dtype]
