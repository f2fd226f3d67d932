"""Matrix product from elementary operations: multiply all pairs of a block of a's rows with b, then sum over k.

All m n k products go through memory, so memory limits the speed: 4096^3 takes about a quarter of a second on an H100.
It shows what the fast implementations save.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRODUCTS = 2**27  # products in memory at a time: 512 MiB in float32. One row of a, k * n of them, is the least


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Compute a @ b; shapes and dtypes as in ``kernels.matmul``."""
    # Compute in float32: a sum in 16 bits loses terms that are much smaller than it.
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    stored = torch.bfloat16 if a.dtype == torch.float8_e4m3fn else a.dtype
    rows = max(1, PRODUCTS // max(1, b.numel()))
    b = b.to(wide)
    for scale in (scale_a, scale_b):
        b = b if scale is None else b * scale
    return torch.cat([(block.to(wide)[:, :, None] * b).sum(1).to(stored) for block in torch.split(a, rows)])
