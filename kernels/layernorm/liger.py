"""LayerNorm of Liger (https://github.com/linkedin/Liger-Kernel): a Triton kernel that holds a whole row."""

from __future__ import annotations

from torch import Tensor

from ..triton_device import on_device_of
from ..unsupported import needs, require_rows

with needs("liger-kernel", extra="liger"):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

MOST_COLS = 65536  # Liger raises an error for longer rows


def layernorm(x: Tensor, w: Tensor, b: Tensor, *, eps: float) -> Tensor:
    """Compute the LayerNorm of each row of ``x``; shapes and dtypes as in ``kernels.layernorm``. ``y`` is contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU, has another dtype, or has rows of more than ``MOST_COLS`` elements.

    """
    require_rows(x, "Liger", MOST_COLS)
    with on_device_of(x):
        y: Tensor = LigerLayerNormFunction.apply(x, w, b, eps)
    return y
