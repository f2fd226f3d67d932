"""Matrix product from elementary operations: multiply all pairs of a row block of a with b, then sum over k.

All m n k products go through memory, so it runs at the speed of memory rather than of arithmetic: on an H100, about
a quarter of a second for 4096^3. That is the point of it: this is what the fast ones save.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRODUCTS = 2**27  # held at a time: 512 MiB in float32. At least one row of a is taken, k * n products


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``."""
    # In float32, because a sum in 16 bits loses the terms that are much smaller than it.
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    stored = torch.bfloat16 if a.dtype == torch.float8_e4m3fn else a.dtype
    rows = max(1, PRODUCTS // max(1, b.numel()))
    b = b.to(wide)
    for scale in (scale_a, scale_b):
        b = b if scale is None else b * scale
    return torch.cat([(block.to(wide)[:, :, None] * b).sum(1).to(stored) for block in torch.split(a, rows)])
