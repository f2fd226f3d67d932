"""Place of the maximum of PyTorch: one kernel, or two."""

from __future__ import annotations

from torch import Tensor


def argmax(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the place of the maximum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.argmax``."""
    return x.argmax(None if dim == "all" else int(dim))
