"""Pairwise distances from elementary operations: subtract, square, sum, square root, for a block of rows at a time.

Differences stay accurate where points are close. The usual expansion |a|^2 + |b|^2 - 2 a.b is a matrix product and much
faster, and loses such distances to cancellation. Here all n m d differences go through memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIFFERENCES = 2**27  # differences in memory at a time: 512 MiB in float32. One row of a, m * d of them, is the least


def cdist(a: Tensor, b: Tensor, *, p: int) -> Tensor:
    """Compute the distances between the rows of ``a`` and ``b``; shapes and dtypes as in ``kernels.cdist``."""
    assert p == 2
    # Compute in float32: a sum in 16 bits loses terms that are much smaller than it.
    wide = torch.promote_types(a.dtype, torch.float32)
    rows = max(1, DIFFERENCES // max(1, b.numel()))
    b = b.to(wide)
    blocks = (block.to(wide)[:, None, :] - b for block in torch.split(a, rows))
    return torch.cat([differences.square().sum(-1).sqrt().to(a.dtype) for differences in blocks])
