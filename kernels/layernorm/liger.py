"""LayerNorm of Liger (https://github.com/linkedin/Liger-Kernel): a Triton kernel that holds a whole row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..triton_device import on_device_of, require_floats
from ..unsupported import Unsupported, needs, require_cuda

with needs("liger-kernel", extra="liger"):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

MOST_COLS = 65536  # Liger raises an error for longer rows


def layernorm(x: Tensor, w: Tensor, b: Tensor, *, eps: float) -> Tensor:
    """Compute the LayerNorm of each row of ``x``; shapes and dtypes as in ``kernels.layernorm``. ``y`` is contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU, has another dtype, or has rows of more than ``MOST_COLS`` elements.

    """
    require_cuda(x, "Liger")
    if x.dtype == torch.float64:
        raise Unsupported("Liger computes this in float32, not in float64")
    require_floats(x)
    if x.shape[-1] > MOST_COLS:
        raise Unsupported(f"Liger's LayerNorm takes rows of up to {MOST_COLS} elements, not {x.shape[-1]}")
    with on_device_of(x):
        y: Tensor = LigerLayerNormFunction.apply(x, w, b, eps)
    return y
