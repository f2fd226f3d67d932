"""LayerNorm of QuACK (https://github.com/Dao-AILab/quack): a kernel in the CuTe DSL, which has no backward."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported, needs, require_aligned, require_vectors

with needs("quack-kernels", extra="quack"):
    from quack.rmsnorm import layernorm_fwd


def layernorm(x: Tensor, w: Tensor, b: Tensor, *, eps: float) -> Tensor:
    """Compute the LayerNorm of each row of ``x``; shapes and dtypes as in ``kernels.layernorm``. ``y`` is contiguous.

    QuACK takes weight and bias in float32. In 16 bits they are converted at each call, by two more kernels.

    Raises:
        Unsupported: a tensor requires a gradient, or ``x`` is not on a GPU, is float64, is not aligned, or has rows
            that are no multiple of 16 bytes.

    """
    require_vectors(x, "QuACK")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, w, b)):
        raise Unsupported("QuACK's LayerNorm has no backward for autograd; use pass=fwd")
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    require_aligned(flat, "QuACK")
    y: Tensor = layernorm_fwd(flat, w.float().contiguous(), b.float().contiguous(), eps=eps)
    return y.reshape(x.shape)
