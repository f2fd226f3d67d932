"""2-norm from elementary operations: square, sum, square root."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the 2-norm of ``x`` along ``dim``; shapes and dtypes as in ``kernels.norm``."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * wide).sum((0, 1) if dim == "all" else int(dim)).sqrt().to(x.dtype)
