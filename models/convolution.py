"""Base class of convolutions of images: their sizes, and how images and filters lie in memory."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from .automatic import WithFormula
from .workload import ITEMSIZE, Draw, Size

if TYPE_CHECKING:
    from torch import Tensor

ImageLayout = Literal["contiguous", "channels_last", "transposed", "strided", "offset"]


@dataclass(frozen=True, kw_only=True)
class Convolution(WithFormula, ABC):
    """Images x [batch, channels, height, width] and filters w [filters, channels / groups, kernel, kernel]."""

    batch: Size
    channels: Size  # of x
    height: Size
    width: Size
    filters: Size  # channels of the result
    kernel: Size  # rows and columns of a filter
    padding: Annotated[int, "at least 0"]  # zeros around x, on each side
    layout: ImageLayout  # type: ignore[assignment]  # of all inputs; channels_last: the channels of a pixel adjoin

    stride, dilation, groups = 1, 1, 1  # fields of conv2d

    def __post_init__(self) -> None:
        if min(self.convolved) < 1:
            raise ValueError(
                f"kernel={self.kernel} does not fit into {self.height} x {self.width} pixels with "
                f"padding={self.padding}; give a larger image or padding"
            )

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width of the result of the convolution."""
        reach = self.dilation * (self.kernel - 1) + 1
        height, width = ((size + 2 * self.padding - reach) // self.stride + 1 for size in (self.height, self.width))
        return height, width

    @property
    def output(self) -> tuple[int, int, int, int]:
        """Shape of y."""
        return (self.batch, self.filters, *self.convolved)

    @property
    def terms(self) -> int:
        """Terms of a sum: numbers of a filter."""
        return self.channels // self.groups * self.kernel**2

    def operands(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x and w. The numbers of w are so small that those of the convolution are about 1."""
        x = draw(self.batch, self.channels, self.height, self.width)
        return x, draw(self.filters, self.channels // self.groups, self.kernel, self.kernel, scale=1 / sqrt(self.terms))

    def options(self) -> Mapping[str, object]:
        """Return the padding."""
        return {"padding": self.padding}

    def flops(self) -> int:
        """2 for each term of each sum, padding included; backward has two such products: for dx and for dw."""
        height, width = self.convolved
        products = {"fwd": 1, "bwd": 2, "fwd_bwd": 3}[self.pass_]
        return products * 2 * self.terms * self.batch * self.filters * height * width

    def _bytes(self, vectors: int) -> int:
        """Return the bytes of x, w, y and ``vectors`` numbers for each filter, and with a backward of the gradients."""
        batch, *others = self.output
        y, x = batch, self.batch * self.channels * self.height * self.width
        for size in others:
            y *= size
        given = x + self.filters * (self.terms + vectors)
        return {"fwd": given + y, "bwd": 2 * given + y, "fwd_bwd": 2 * (given + y)}[self.pass_] * ITEMSIZE[self.dtype]
