"""Cross entropy of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL."""

from __future__ import annotations

from torch import Tensor

from ..unsupported import needs, require_aligned, require_vectors

with needs("quack-kernels", extra="quack"):
    from quack.cross_entropy import cross_entropy as quack_cross_entropy


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Compute the loss of each row; shapes and dtypes as in ``kernels.cross_entropy``.

    QuACK returns float32, which is converted to the dtype of ``x`` by another kernel over the rows.

    Raises:
        Unsupported: ``x`` is not on a GPU, is float64, is not aligned, or has rows that are no multiple of 16 bytes.

    """
    require_vectors(x, "QuACK")
    x = x.contiguous()
    require_aligned(x, "QuACK")
    loss: Tensor = quack_cross_entropy(x, target.contiguous(), reduction="none")
    return loss.to(x.dtype)
