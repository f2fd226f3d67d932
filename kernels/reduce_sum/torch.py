"""Sum of PyTorch: one kernel, or two."""

from __future__ import annotations

from torch import Tensor


def reduce_sum(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the sum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.reduce_sum``."""
    return x.sum((0, 1) if dim == "all" else int(dim))
