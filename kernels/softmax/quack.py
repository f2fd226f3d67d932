"""Softmax of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL.

The blocks of a cluster share a long row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_cuda, require_vectors

with needs("quack-kernels", extra="quack"):
    from quack.softmax import softmax as quack_softmax

SHARED = 16 * 224 * 1024  # bytes of shared memory of a cluster of 16 blocks, the largest on a Hopper GPU


def softmax(x: Tensor) -> Tensor:
    """Compute the softmax of each row of ``x``; shapes and dtypes as in ``kernels.softmax``. ``y`` is contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU, is float64, is not aligned, or has rows that QuACK does not take.

    """
    require_cuda(x, "QuACK")
    if not x.numel():
        return x.clone()
    cols, size = x.shape[-1], x.element_size()
    require_vectors(x, "QuACK")
    held = 2 if x.requires_grad and torch.is_grad_enabled() else 1  # the backward keeps y and dy in shared memory
    if held * cols * size > SHARED:
        raise Unsupported(f"QuACK's softmax keeps a row in the shared memory of 16 blocks, which is full at {cols}")
    rows = x.reshape(-1, cols).contiguous()
    require_aligned(rows, "QuACK")
    y: Tensor = quack_softmax(rows)
    return y.reshape(x.shape)
