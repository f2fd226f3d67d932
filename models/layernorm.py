"""LayerNorm of each row: y = (x - mean) / (variance + eps)^(1/2) * w + b (Ba et al. 2016, arXiv:1607.06450)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .row_norm import RowNorm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Layernorm(RowNorm):
    """y of x [rows, cols], weight w [cols] and bias b [cols]; the gradients are those of x, w and b."""

    differentiated: ClassVar[tuple[str, ...]] = ("x", "w", "b")
    # add, subtract, square, add, scale, w, b | x̂: 2, w, 2 products and 2 sums, 2 differences, scale, dw: 2, db
    operations: ClassVar[tuple[int, int]] = (7, 13)

    def formula(self, *tensors: Tensor) -> Tensor:
        """Return y."""
        import torch.nn.functional as F

        x, w, b = tensors
        return F.layer_norm(x, (self.cols,), w, b, self.eps)
