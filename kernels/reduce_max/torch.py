"""Maximum of PyTorch: one kernel, or two."""

from __future__ import annotations

from torch import Tensor


def reduce_max(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the maximum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.reduce_max``."""
    return x.amax((0, 1) if dim == "all" else int(dim))
