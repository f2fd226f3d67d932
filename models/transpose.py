"""Transpose of a matrix: y = x^T, written row by row. Nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .workload import ITEMSIZE, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Transpose(Workload):
    """y [cols, rows] with y_ij = x_ji, for x [rows, cols]; y is contiguous."""

    rows: Size  # of x
    cols: Size  # of x

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols]."""
        return (draw(self.rows, self.cols),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [cols, rows]. Elements are only moved, so every one of them must be equal."""
        y = inputs[0].double().t().contiguous()
        return (Expected(name="y", value=y, atol=0.0, rtol=0.0, tolerance="0: y is exact"),)

    def flops(self) -> int:
        """None."""
        return 0

    def bytes_min(self) -> int:
        """Input x, read once, and output y, written once."""
        return 2 * self.rows * self.cols * ITEMSIZE[self.dtype]
