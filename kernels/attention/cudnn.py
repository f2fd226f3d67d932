"""Attention of PyTorch by its backend "cudnn": cuDNN."""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention import SDPBackend

from ._backends import scaled_dot_product


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``.

    Raises:
        Unsupported: the backend does not take these tensors here. The message says why.

    """
    return scaled_dot_product(q, k, v, causal, SDPBackend.CUDNN_ATTENTION)
