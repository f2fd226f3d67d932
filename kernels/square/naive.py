"""Square as a product."""

from __future__ import annotations

from torch import Tensor


def square(a: Tensor) -> Tensor:
    """Compute ``a * a``; shapes and dtypes as in ``kernels.square``."""
    return a * a
