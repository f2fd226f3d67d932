"""A tensor-parallel linear layer, split along its inputs (row-parallel): each rank's product is a part of a sum."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from .matmul import Matmul
from .ranks import OnRanks, gathered
from .workload import ITEMSIZE, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MatmulAllReduce(OnRanks):
    """y [m, n] on every rank: the sum over ranks of a [m, k / ranks] @ b [k / ranks, n]."""

    m: Size  # rows of a and y
    k: Size  # terms of each sum, of all ranks
    n: Size  # columns of b and y

    def __post_init__(self) -> None:
        self.require_multiple("k", "ranks")

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return this rank's columns of a, and its rows of b."""
        return draw(self.m, self.k // self.ranks), draw(self.k // self.ranks, self.n)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [m, n].

        The tolerance is that of the workload matmul, and six standard deviations of the roundings in a sum over ranks:
        each adds a part that is rounded, and the sum is rounded again.
        """
        a, b = (gathered(x).double() for x in inputs)
        a, b = a.movedim(0, 1).flatten(1), b.flatten(0, 1)
        same: dict[str, Any] = {"dtype": self.dtype, "tf32": self.tf32, "data": self.data}
        matmul = Matmul(size=None, m=self.m, n=self.n, k=self.k, layout="contiguous", **same)
        return (matmul.expected_of(a, b, over_ranks=sqrt((2 * self.ranks - 1) / 3) * UNIT[self.dtype]),)

    def flops(self) -> int:
        """2 m n k / ranks: the product of one rank."""
        return 2 * self.m * self.n * self.k // self.ranks

    def bytes_min(self) -> int:
        """A rank's part of a and b, read once, and y, written once."""
        return ((self.m + self.n) * self.k // self.ranks + self.m * self.n) * ITEMSIZE[self.dtype]
