"""RMSNorm of QuACK (https://github.com/Dao-AILab/quack): kernels in the CuTe DSL."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_cuda

with needs("quack-kernels", extra="quack"):
    from quack.rmsnorm import rmsnorm as quack_rmsnorm

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ACCESS = 16  # bytes that a thread reads at once; rows are taken that are a multiple of them


def rmsnorm(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Compute the RMSNorm of each row of ``x``; shapes and dtypes as in ``kernels.rmsnorm``. ``y`` is contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU, is float64, is not aligned, or has rows that are no multiple of 16 bytes.

    """
    require_cuda(x, "QuACK")
    if x.dtype not in DTYPES:
        raise Unsupported(f"QuACK's RMSNorm takes float32, float16 and bfloat16, not {x.dtype}")
    if x.shape[-1] * x.element_size() % ACCESS:
        raise Unsupported(
            f"QuACK's RMSNorm takes rows of a multiple of {ACCESS // x.element_size()} elements in {x.dtype}"
        )
    x = x.contiguous()
    require_aligned(x, "QuACK")
    y: Tensor = quack_rmsnorm(x, w.contiguous(), eps=eps)
    return y
