"""Place of the maximum of a matrix, or of each of its rows or columns. If several elements have it, the first place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reduction import Reduction
from .workload import ITEMSIZE, Draw, Expected, OutputType

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Argmax(Reduction):
    """y = place of the maximum of x [rows, cols]: row * cols + col, or the row (dim = 0) or the column (dim = 1)."""

    @property
    def output_dtype(self) -> OutputType:
        """Places are whole numbers."""
        return "int64"

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols]. Each maximum is at a second place too, as likely before the first one as after it."""
        x, marks = draw(self.rows, self.cols), draw(self.rows, self.cols)
        return (x.where(marks != marks.amax(self.axes, keepdim=True), x.amax(self.axes, keepdim=True)),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y: one number, [cols] or [rows]. The tolerance of half a place allows no other place."""
        value = inputs[0].argmax(None if self.dim == "all" else self.dim).double()
        return (Expected("y", value, atol=0.5, rtol=0.0, tolerance="exact"),)

    def flops(self) -> int:
        """1 per comparison: one fewer than elements, for each output."""
        return self.outputs * (self.terms - 1)

    def bytes_min(self) -> int:
        """Input x, read once, and output y of int64, written once."""
        return self.rows * self.cols * ITEMSIZE[self.dtype] + self.outputs * 8
