"""Softmax of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL.

The blocks of a cluster share a long row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_cuda

with needs("quack-kernels", extra="quack"):
    from quack.softmax import softmax as quack_softmax

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ACCESS = 16  # bytes that a thread reads at once; QuACK takes only rows that are a multiple of them
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
    if x.dtype not in DTYPES:
        raise Unsupported(f"QuACK's softmax takes float32, float16 and bfloat16, not {x.dtype}")
    if cols * size % ACCESS:
        raise Unsupported(f"QuACK's softmax takes rows of a multiple of {ACCESS // size} elements in {x.dtype}")
    held = 2 if x.requires_grad and torch.is_grad_enabled() else 1  # the backward keeps y and dy in shared memory
    if held * cols * size > SHARED:
        raise Unsupported(f"QuACK's softmax keeps a row in the shared memory of 16 blocks, which is full at {cols}")
    rows = x.reshape(-1, cols).contiguous()
    require_aligned(rows, "QuACK")
    y: Tensor = quack_softmax(rows)
    return y.reshape(x.shape)
