"""Square of each element: y = a^2. It is the first operation that lecture 1 of GPU MODE profiles, in three spellings.

The spellings are a * a (``impl=naive``), torch.square(a) (``impl=torch``) and a ** 2 (``impl=power``).

Backward: da = 2 a dy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .passes import WithPasses
from .rounding import FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Square(WithPasses):
    """y = a^2, or the gradient da of a from the gradient dy of y; all tensors are [rows, cols]."""

    rows: Size
    cols: Size
    pass_: Literal["fwd", "bwd"]  # fwd: y from a; bwd: da from a and dy, without the forward

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return a [rows, cols]; for bwd also dy [rows, cols]."""
        a = draw(self.rows, self.cols)
        return (a,) if self.pass_ == "fwd" else (a, draw(self.rows, self.cols))

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [rows, cols] for fwd, da [rows, cols] for bwd.

        The tolerance allows one rounding of the product, and one to ``dtype``. Doubling is exact. Autograd may add
        a dy to itself, and each of the two terms may become 0: twice the limit of one.
        """
        a = inputs[0].double()
        name, value = ("y", a * a) if self.pass_ == "fwd" else ("da", 2 * a * inputs[1].double())
        rtol, floor = UNIT[self.dtype] + ARITHMETIC[self.dtype], 2 * FLOOR[self.dtype]
        return (Expected(name, value, atol=floor, rtol=rtol, tolerance=f"{rtol:.1e} |r|"),)

    def flops(self) -> int:
        """1 per element, or 2 for bwd: each multiplication counts 1."""
        return (1 if self.pass_ == "fwd" else 2) * self.rows * self.cols

    def bytes_min(self) -> int:
        """Input a, read once, and output y, written once; for bwd a, dy and da."""
        return (2 if self.pass_ == "fwd" else 3) * self.rows * self.cols * ITEMSIZE[self.dtype]
