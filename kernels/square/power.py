"""Square as a power with the exponent 2."""

from __future__ import annotations

from torch import Tensor


def square(a: Tensor) -> Tensor:
    """Compute ``a ** 2``; shapes and dtypes as in ``kernels.square``."""
    y: Tensor = a**2
    return y
