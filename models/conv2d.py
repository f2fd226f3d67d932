"""Convolution of images: y_nfij = sum_ckl w_fckl x_nc(i s + k d - p)(j s + l d - p), where x is 0 beyond its edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .convolution import Convolution
from .workload import Draw, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """y [batch, filters, rows, cols] of x and w, with dx and dw."""

    differentiated: ClassVar[tuple[str, ...]] = ("x", "w")

    stride: Size  # pixels of x from one y to the next, along both sides
    dilation: Size  # pixels of x from one number of a filter to the next
    groups: Size  # filters in as many groups, each of which sees its share of the channels

    def __post_init__(self) -> None:
        for name in ("channels", "filters"):
            if getattr(self, name) % self.groups:
                raise ValueError(f"{name}={getattr(self, name)} is not a multiple of groups={self.groups}")
        super().__post_init__()

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [batch, channels, height, width] and w [filters, channels / groups, kernel, kernel].

        For bwd and fwd_bwd also dy, of the shape of y.
        """
        tensors = self.operands(draw)
        return tensors if self.pass_ == "fwd" else (*tensors, draw(*self.output))

    def options(self) -> Mapping[str, object]:
        """Return stride, padding, dilation and groups."""
        return {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}

    def formula(self, *tensors: Tensor) -> Tensor:
        """Return y."""
        import torch.nn.functional as F

        x, w = tensors
        return F.conv2d(x, w, None, self.stride, self.padding, self.dilation, self.groups)

    def bytes_min(self) -> int:
        """Every input, read once, and every output, written once: x, w, y, and for a backward dy, dx and dw."""
        return self._bytes(0)
