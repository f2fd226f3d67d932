"""LayerNorm of PyTorch: one fused kernel forward, several backward."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def layernorm(x: Tensor, w: Tensor, b: Tensor, *, eps: float) -> Tensor:
    """Compute the LayerNorm of each row of ``x``; shapes and dtypes as in ``kernels.layernorm``."""
    return F.layer_norm(x, x.shape[-1:], w, b, eps)
