"""Sum of two tensors: y = a + b, the first operation that Stanford CS336, lecture 6, profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.models.rounding import FLOOR
from runner.models.workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Add(Workload):
    """y = a + b, for a, b, y [rows, cols]."""

    rows: Size
    cols: Size

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Inputs a, b [rows, cols]."""
        return draw(self.rows, self.cols), draw(self.rows, self.cols)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Output y [rows, cols]. A correct y carries the rounding of its sum, and the one to ``dtype``."""
        a, b = (tensor.double() for tensor in inputs)
        rtol = UNIT[self.dtype] + ARITHMETIC[self.dtype]
        return (Expected(name="y", value=a + b, atol=FLOOR[self.dtype], rtol=rtol, tolerance=f"{rtol:.1e} |r|"),)

    def flops(self) -> int:
        """1 per element."""
        return self.rows * self.cols

    def bytes_min(self) -> int:
        """Inputs a and b read, y written."""
        return 3 * self.rows * self.cols * ITEMSIZE[self.dtype]
