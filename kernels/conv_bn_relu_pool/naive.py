"""The block from elementary operations, each of which reads and writes memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..conv2d.naive import conv2d


def conv_bn_relu_pool(
    x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor | None = None, variance: Tensor | None = None,
    *, padding: int = 0, pool: int = 2, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Compute the block; shapes and dtypes as in ``kernels.conv_bn_relu_pool``."""
    z = conv2d(x, w, padding=padding).to(torch.promote_types(x.dtype, torch.float32))
    if mean is None or variance is None:
        variance, mean = torch.var_mean(z, (0, 2, 3), correction=0)
    mean, variance, gamma, beta = (each.to(z.dtype)[:, None, None] for each in (mean, variance, gamma, beta))
    z = ((z - mean) / (variance + eps).sqrt() * gamma + beta).to(x.dtype).clamp(min=0)
    return z.unfold(2, pool, pool).unfold(3, pool, pool).amax((-1, -2))
