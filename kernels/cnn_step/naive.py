"""The network with blocks from elementary operations."""

from __future__ import annotations

from torch import Tensor

from ..conv_bn_relu_pool.naive import conv_bn_relu_pool
from ._network import network


def cnn_step(x: Tensor, *params: Tensor) -> Tensor:
    """Compute the logits; shapes and dtypes as in ``kernels.cnn_step``."""
    return network(conv_bn_relu_pool, x, *params)
