"""RMSNorm of Liger (https://github.com/linkedin/Liger-Kernel): a Triton kernel that holds a whole row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..triton_device import on_device_of, require_floats
from ..unsupported import Unsupported, needs, require_cuda

with needs("liger-kernel", extra="liger"):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

MOST_COLS = 65536  # Liger raises an error for longer rows


def rmsnorm(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Compute the RMSNorm of each row of ``x``; shapes and dtypes as in ``kernels.rmsnorm``. ``y`` is contiguous.

    It is computed in float32 throughout (Liger's "gemma"), and its backward leaves the gradient of ``y`` as it is.

    Raises:
        Unsupported: ``x`` is not on a GPU, has another dtype, or has rows of more than ``MOST_COLS`` elements.

    """
    require_cuda(x, "Liger")
    if x.dtype == torch.float64:
        raise Unsupported("Liger computes this in float32, not in float64")
    require_floats(x)
    if x.shape[-1] > MOST_COLS:
        raise Unsupported(f"Liger's RMSNorm takes rows of up to {MOST_COLS} elements, not {x.shape[-1]}")
    with on_device_of(x):
        y: Tensor = LigerRMSNormFunction.apply(x, w, eps, 0.0, "gemma", False)
    return y
