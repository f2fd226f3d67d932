"""RMSNorm of each row: y = x / (mean x^2 + eps)^(1/2) * w (Zhang & Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .row_norm import RowNorm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rmsnorm(RowNorm):
    """y of x [rows, cols] and weight w [cols]; the gradients are those of x and w."""

    differentiated: ClassVar[tuple[str, ...]] = ("x", "w")
    # square, add, scale, w | x̂, w, 2 for the sum, 2 for the difference, scale, dw: 2
    operations: ClassVar[tuple[int, int]] = (4, 9)

    def formula(self, *tensors: Tensor) -> Tensor:
        """Return y."""
        import torch.nn.functional as F

        x, w = tensors
        return F.rms_norm(x, (self.cols,), w, self.eps)
