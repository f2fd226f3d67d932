"""RMSNorm of PyTorch: one fused kernel on a GPU from torch 2.9 on, several before."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rmsnorm(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Compute the RMSNorm of each row of ``x``; shapes and dtypes as in ``kernels.rmsnorm``."""
    return F.rms_norm(x, x.shape[-1:], w, eps)
