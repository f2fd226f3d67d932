"""The block as four operations of PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def conv_bn_relu_pool(
    x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor | None = None, variance: Tensor | None = None,
    *, padding: int = 0, pool: int = 2, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Compute the block; shapes and dtypes as in ``kernels.conv_bn_relu_pool``."""
    z = F.conv2d(x, w, padding=padding)
    z = F.batch_norm(z, mean, variance, gamma, beta, training=mean is None, momentum=0.0, eps=eps)
    return F.max_pool2d(F.relu(z), pool)
