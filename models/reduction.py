"""Base class of the reductions of a matrix: sizes, the dimension, and the error of a sum."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

from .workload import ITEMSIZE, Draw, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor

Dim = Literal["all", 0, 1]

MOST_TERMS = 2**14  # numbers that an implementation may add into one accumulator


@dataclass(frozen=True, kw_only=True)
class Reduction(Workload, ABC):
    """y of x [rows, cols]: one number, or one for each column (dim = 0) or row (dim = 1)."""

    rows: Size
    cols: Size
    dim: Dim  # the dimension that disappears; all: both

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols]."""
        return (draw(self.rows, self.cols),)

    def options(self) -> Mapping[str, object]:
        """Return the dimension."""
        return {"dim": self.dim}

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that disappear."""
        return (0, 1) if self.dim == "all" else (self.dim,)

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return {"all": 1, 0: self.cols, 1: self.rows}[self.dim]

    @property
    def terms(self) -> int:
        """The number of elements of each output."""
        return self.rows * self.cols // self.outputs

    def spread(self) -> float:
        """Return four standard deviations of the error of a sum of ``terms`` positive numbers, in units of the sum.

        An implementation adds at most ``MOST_TERMS`` numbers into one accumulator, one after the other in the worst
        order, and then the accumulators likewise. A step rounds a partial sum uniformly. So the error of n numbers is
        a random walk with a standard deviation of n^(1/2) / 4 units, and the errors of both stages add up.
        """
        first = min(self.terms, MOST_TERMS)
        return sqrt(first) + sqrt(self.terms / first)

    def bytes_min(self) -> int:
        """Input x, read once, and output y, written once."""
        return (self.rows * self.cols + self.outputs) * ITEMSIZE[self.dtype]
