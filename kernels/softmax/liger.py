"""Softmax of Liger (https://github.com/linkedin/Liger-Kernel): a Triton kernel that holds a whole row in one block."""

from __future__ import annotations

from torch import Tensor

from ..triton_device import on_device_of, require_floats
from ..unsupported import Unsupported, needs, require_cuda

with needs("liger-kernel", extra="liger"):
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

MOST_COLS = 65536  # Liger raises an error for longer rows


def softmax(x: Tensor) -> Tensor:
    """Compute the softmax of each row of ``x``; shapes and dtypes as in ``kernels.softmax``. ``y`` is contiguous.

    Raises:
        Unsupported: ``x`` is not on a GPU, has another dtype, or has rows of more than ``MOST_COLS`` elements.

    """
    require_cuda(x, "Liger")
    require_floats(x)
    if not x.numel():
        return x.clone()
    if x.shape[-1] > MOST_COLS:
        raise Unsupported(f"Liger's softmax takes rows of up to {MOST_COLS} elements, not {x.shape[-1]}")
    with on_device_of(x):
        y: Tensor = LigerSoftmaxFunction.apply(x)
    return y
