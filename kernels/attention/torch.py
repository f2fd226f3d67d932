"""Attention of PyTorch by the backend that it chooses: on a GPU flash, efficient, cuDNN or math."""

from __future__ import annotations

from torch import Tensor

from ._backends import scaled_dot_product


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``."""
    return scaled_dot_product(q, k, v, causal)
