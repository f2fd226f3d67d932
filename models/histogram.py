"""Histogram: how many elements of x lie in each of the bins that divide [0, 1] evenly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .workload import ITEMSIZE, Draw, Expected, OutputType, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor

MOST_BINS = 2**20  # then a bin is eight float32 numbers wide at 1, and its middle is far from its edges
COUNT_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Histogram(Workload):
    """y [bins] in int64: y_k is the number of elements of x [elements] in [k / bins, (k + 1) / bins).

    As in ``torch.histc``, the last bin includes 1, and other elements are in no bin. The inputs are middles of bins, so
    that rounding moves none of them into another bin, and every correct result is the same.
    """

    dtype: Literal["float32"]  # a narrower dtype does not have the middles of many bins
    elements: Size  # of x
    bins: Size  # of equal width

    def __post_init__(self) -> None:
        if self.bins > MOST_BINS:
            raise ValueError(f"bins: {self.bins} is not allowed; give at most {MOST_BINS}, which float32 tells apart")

    @property
    def output_dtype(self) -> OutputType:
        """int64: counts."""
        return "int64"

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [elements], in random order. Uniform data fill all bins evenly, zeros are all in the middle bin.

        Normal data have a standard deviation of 1/8 around 1/2; elements beyond 0 or 1 are in the first or last bin.
        """
        x = draw(self.elements, scale=0.25 if self.data == "normal" else 1.0)  # of [-1, 1]
        x.add_(1).mul_(self.bins / 2).floor_().clamp_(0, self.bins - 1)
        return (x.add_(0.5).div_(self.bins),)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [bins]. Every count must be equal."""
        x = inputs[0].double()
        inside = x[(x >= 0) & (x <= 1)]
        bins = (inside * self.bins).long().clamp(max=self.bins - 1)
        y = bins.bincount(minlength=self.bins).double()
        return (Expected(name="y", value=y, atol=0.0, rtol=0.0, tolerance="0: y is exact"),)

    def options(self) -> Mapping[str, object]:
        """Return the number of bins."""
        return {"bins": self.bins}

    def flops(self) -> int:
        """1 per element: its product with the number of bins. Counting is not a floating-point operation."""
        return self.elements

    def bytes_min(self) -> int:
        """Input x, read once, and output y, written once."""
        return self.elements * ITEMSIZE[self.dtype] + self.bins * COUNT_BYTES
