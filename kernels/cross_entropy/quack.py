"""Cross entropy of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_cuda

with needs("quack-kernels", extra="quack"):
    from quack.cross_entropy import cross_entropy as quack_cross_entropy

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ACCESS = 16  # bytes that a thread reads at once; rows are taken that are a multiple of them


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Compute the loss of each row; shapes and dtypes as in ``kernels.cross_entropy``.

    QuACK returns float32, which is converted to the dtype of ``x`` by another kernel over the rows.

    Raises:
        Unsupported: ``x`` is not on a GPU, is float64, is not aligned, or has rows that are no multiple of 16 bytes.

    """
    require_cuda(x, "QuACK")
    if x.dtype not in DTYPES:
        raise Unsupported(f"QuACK's cross entropy takes float32, float16 and bfloat16, not {x.dtype}")
    if x.shape[-1] * x.element_size() % ACCESS:
        raise Unsupported(
            f"QuACK's cross entropy takes rows of a multiple of {ACCESS // x.element_size()} logits in {x.dtype}"
        )
    x = x.contiguous()
    require_aligned(x, "QuACK")
    loss: Tensor = quack_cross_entropy(x, target.contiguous(), reduction="none")
    return loss.to(x.dtype)
