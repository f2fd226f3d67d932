"""RMSNorm of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL."""

from __future__ import annotations

from torch import Tensor

from ..unsupported import needs, require_aligned, require_vectors

with needs("quack-kernels", extra="quack"):
    from quack.rmsnorm import rmsnorm as quack_rmsnorm


def rmsnorm(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Compute the RMSNorm of each row of ``x``; shapes and dtypes as in ``kernels.rmsnorm``. ``y`` is contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU, is float64, is not aligned, or has rows that are no multiple of 16 bytes.

    """
    require_vectors(x, "QuACK")
    x = x.contiguous()
    require_aligned(x, "QuACK")
    y: Tensor = quack_rmsnorm(x, w.contiguous(), eps=eps)
    return y
