"""RMSNorm of Liger (https://github.com/linkedin/Liger-Kernel): a Triton kernel that holds a whole row."""

from __future__ import annotations

from torch import Tensor

from ..triton_device import on_device_of
from ..unsupported import needs, require_rows

with needs("liger-kernel", extra="liger"):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

MOST_COLS = 65536  # Liger raises an error for longer rows


def rmsnorm(x: Tensor, w: Tensor, *, eps: float) -> Tensor:
    """Compute the RMSNorm of each row of ``x``; shapes and dtypes as in ``kernels.rmsnorm``. ``y`` is contiguous.

    It is computed in float32 throughout (Liger's "gemma"), and its backward leaves the gradient of ``y`` as it is.

    Raises:
        Unsupported: ``x`` is not on a GPU, has another dtype, or has rows of more than ``MOST_COLS`` elements.

    """
    require_rows(x, "Liger", MOST_COLS)
    with on_device_of(x):
        y: Tensor = LigerRMSNormFunction.apply(x, w, eps, 0.0, "gemma", False)
    return y
