"""Sum of two tensors: y = a + b. It is the first operation that lecture 6 of Stanford CS336 profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rounding import FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Add(Workload):
    """y = a + b, for a, b, y [rows, cols]."""

    rows: Size
    cols: Size

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return a and b, [rows, cols] each."""
        return draw(self.rows, self.cols), draw(self.rows, self.cols)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [rows, cols]. The tolerance allows one rounding of the sum, and one to ``dtype``."""
        a, b = (tensor.double() for tensor in inputs)
        rtol = UNIT[self.dtype] + ARITHMETIC[self.dtype]
        return (Expected(name="y", value=a + b, atol=FLOOR[self.dtype], rtol=rtol, tolerance=f"{rtol:.1e} |r|"),)

    def flops(self) -> int:
        """1 per element."""
        return self.rows * self.cols

    def bytes_min(self) -> int:
        """Inputs a and b, read once, and output y, written once."""
        return 3 * self.rows * self.cols * ITEMSIZE[self.dtype]
