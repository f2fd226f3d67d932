"""Public kernels as functions for ``impl=file``. Each needs its package, and is left out without it."""

from __future__ import annotations

from torch import Tensor


def liger_softmax(x: Tensor) -> Tensor:
    """Compute the softmax of each row of ``x`` [rows, cols] with Liger: https://github.com/linkedin/Liger-Kernel."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    y: Tensor = LigerSoftmaxFunction.apply(x)
    return y
