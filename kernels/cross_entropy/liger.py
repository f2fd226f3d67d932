"""Cross entropy of Liger (https://github.com/linkedin/Liger-Kernel): a Triton kernel with a row for each program."""

from __future__ import annotations

import torch
from torch import Tensor

from ..triton_device import on_device_of
from ..unsupported import Unsupported, needs, require_rows

with needs("liger-kernel", extra="liger"):
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Compute the loss of each row; shapes and dtypes as in ``kernels.cross_entropy``.

    Raises:
        Unsupported: ``x`` is not on a GPU, has another dtype, or requires a gradient, which Liger would write over it.

    """
    require_rows(x, "Liger")
    if x.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            "Liger's cross entropy writes the gradient over the logits, which the next call needs; use pass=fwd"
        )
    with on_device_of(x):
        loss: Tensor = LigerCrossEntropyFunction.apply(x, target, None, -100, 0.0, 0.0, "none")[0]
    return loss
