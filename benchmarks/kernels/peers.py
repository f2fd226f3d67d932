"""Public kernels as functions that ``impl=file`` can run; each needs its package, and is left out without it."""

from __future__ import annotations

from torch import Tensor


def liger_softmax(x: Tensor) -> Tensor:
    """Liger's softmax in Triton: https://github.com/linkedin/Liger-Kernel."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    y: Tensor = LigerSoftmaxFunction.apply(x)
    return y
