"""A block of a convolutional network: y = max_pool(relu(batch_norm(conv(x, w)))).

Batch norm subtracts a mean from each channel and divides by a standard deviation: in training those of the batch, in
inference those that are given. Then it multiplies by gamma and adds beta. Both variances are those of all numbers, n
and not n - 1 in the divisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from .convolution import Convolution
from .workload import Draw, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ConvBnReluPool(Convolution):
    """y [batch, filters, rows / pool, cols / pool] of x, w, gamma and beta, with all gradients."""

    differentiated: ClassVar[tuple[str, ...]] = ("x", "w", "gamma", "beta")

    pool: Size  # rows and columns of a window whose largest number is kept; rows and columns left over are dropped
    mode: Literal["inference", "training"]  # training: mean and variance of the batch, else those that are given
    eps: Annotated[float, "above 0"]  # added to the variance
    dtype: Literal["float32", "float16", "bfloat16"]

    def __post_init__(self) -> None:
        if self.mode == "inference" and self.pass_ != "fwd":
            raise ValueError(f"pass={self.pass_}: inference has no backward; give mode=training")
        super().__post_init__()
        if min(self.output) < 1:
            rows, cols = self.convolved
            raise ValueError(f"pool={self.pool} is larger than the {rows} x {cols} numbers that it gets")

    @property
    def output(self) -> tuple[int, int, int, int]:
        """Shape of y."""
        height, width = (size // self.pool for size in self.convolved)
        return self.batch, self.filters, height, width

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x, w, gamma [filters] and beta [filters].

        For inference also mean [filters] and variance [filters], for bwd and fwd_bwd dy, of the shape of y. Gamma may
        be negative: then the largest number of a window is not the largest of the convolution. It is not near 0, and
        beta and mean are small, so that ReLU leaves something of each channel. For fwd, the variance of the first
        channel is about eps, so that eps counts. Its gradients would overflow float16.
        """
        gamma = draw(self.filters)
        gamma = gamma.sign() * (gamma.abs() + 0.5)
        tensors = (*self.operands(draw), gamma, draw(self.filters, scale=0.1))
        if self.mode == "inference":
            mean, variance = draw(self.filters, scale=0.1), draw(self.filters).abs() + 0.5
            variance[0] = self.eps
            return (*tensors, mean, variance)
        if self.pass_ == "fwd":
            tensors[1][0] *= sqrt(self.eps)
        return tensors if self.pass_ == "fwd" else (*tensors, draw(*self.output))

    def options(self) -> Mapping[str, object]:
        """Return padding, pool and eps."""
        return {name: getattr(self, name) for name in ("padding", "pool", "eps")}

    def formula(self, *tensors: Tensor) -> Tensor:
        """Return y."""
        import torch.nn.functional as F

        x, w, gamma, beta, *given = tensors
        mean, variance = given or (None, None)
        z = F.batch_norm(F.conv2d(x, w, padding=self.padding), mean, variance, gamma, beta, not given, 0.0, self.eps)
        return F.max_pool2d(F.relu(z), self.pool)

    def bytes_min(self) -> int:
        """Every input, read once, and every output, written once: x, w, four vectors (inference) or two, and y.

        For a backward also dy and the gradients of x, w, gamma and beta. What lies between the four steps does not
        count: one kernel need not write it.
        """
        return self._bytes(4 if self.mode == "inference" else 2)
