"""Pairwise distances from elementary operations: subtract, square, sum, square root, for a block of rows at a time.

It takes the differences themselves, so it stays exact where points are close. The usual |a|^2 + |b|^2 - 2 a.b is a
matrix product, far faster, and loses such distances to cancellation. All n m d differences go through memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIFFERENCES = 2**27  # held at a time: 512 MiB in float32. At least one row of a is taken, m * d differences


def cdist(a: Tensor, b: Tensor, *, p: int) -> Tensor:
    """Distances between the rows of ``a`` and ``b``, as in ``kernels.cdist``."""
    assert p == 2
    # In float32, because a sum in 16 bits loses the terms that are much smaller than it.
    wide = torch.promote_types(a.dtype, torch.float32)
    rows = max(1, DIFFERENCES // max(1, b.numel()))
    b = b.to(wide)
    blocks = (block.to(wide)[:, None, :] - b for block in torch.split(a, rows))
    return torch.cat([differences.square().sum(-1).sqrt().to(a.dtype) for differences in blocks])
