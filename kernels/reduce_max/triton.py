"""Maximum in Triton, from ``kernels.reductions``. It has no backward."""

from __future__ import annotations

from torch import Tensor

from ..reductions import reduce


def reduce_max(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the maximum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.reduce_max``.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``x`` is no matrix, or has no elements to compare, or ``dim`` is not allowed.

    """
    return reduce("max", x, dim)
