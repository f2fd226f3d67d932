"""Base class of the normalizations of rows: sizes, eps, and the traffic of forward and backward."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar

from .automatic import WithFormula
from .workload import ITEMSIZE, Draw, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RowNorm(WithFormula, ABC):
    """y of x [rows, cols], of which each row is normalized and multiplied by a weight [cols]."""

    rows: Size
    cols: Size
    eps: Annotated[float, "above 0"]  # is added to what the root is taken of

    operations: ClassVar[tuple[int, int]]  # for each element, forward and backward

    @property
    def vectors(self) -> int:
        """1: the weight; 2: weight and bias."""
        return len(self.differentiated) - 1

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [rows, cols] and each vector [cols]; for bwd and fwd_bwd also dy [rows, cols].

        The first row is so small that its squares are about eps: without eps, it would be twice as large or more.
        """
        tensors = draw(self.rows, self.cols), *(draw(self.cols) for _ in range(self.vectors))
        tensors[0][0] *= sqrt(self.eps)
        return tensors if self.pass_ == "fwd" else (*tensors, draw(self.rows, self.cols))

    def options(self) -> Mapping[str, object]:
        """Return eps."""
        return {"eps": self.eps}

    def flops(self) -> int:
        """Operations of the definition for each element, statistics included; fwd_bwd computes them once."""
        forward, backward = self.operations
        each = {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[self.pass_]
        return each * self.rows * self.cols

    def bytes_min(self) -> int:
        """Every input, read once, and every output, written once: x, y, dy, dx, and vectors with their gradients.

        A backward does not read the bias.

        A forward and a backward that are two kernels read x twice, which is 5/4 of this for fwd_bwd.
        """
        matrices = {"fwd": 2, "bwd": 3, "fwd_bwd": 4}[self.pass_]
        vectors = {"fwd": self.vectors, "bwd": 1 + self.vectors, "fwd_bwd": 2 * self.vectors}[self.pass_]
        return (matrices * self.rows + vectors) * self.cols * ITEMSIZE[self.dtype]
