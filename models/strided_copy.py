"""Copy of every stride-th number of a vector: what accesses cost that are not coalesced. Nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .workload import ITEMSIZE, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StridedCopy(Workload):
    """y [elements] with y_i = x_(i stride), for x [elements stride]."""

    elements: Size  # of y
    stride: Size  # between two numbers of x that are read, in numbers

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [elements stride]."""
        return (draw(self.elements * self.stride),)

    def options(self) -> Mapping[str, object]:
        """Return the stride."""
        return {"stride": self.stride}

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [elements]. Numbers are only moved, so every one of them must be equal."""
        y = inputs[0][:: self.stride].double()
        return (Expected(name="y", value=y, atol=0.0, rtol=0.0, tolerance="0: y is exact"),)

    def flops(self) -> int:
        """None."""
        return 0

    def bytes_min(self) -> int:
        """The numbers of x that are copied, read once, and y, written once."""
        return 2 * self.elements * ITEMSIZE[self.dtype]
