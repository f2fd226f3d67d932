"""Public kernels, which ``conf/impl/`` gives names. Each needs its package, and is unsupported without it."""

from __future__ import annotations

from torch import Tensor

from runner.kernels.unsupported import Unsupported


def liger_softmax(x: Tensor) -> Tensor:
    """Compute the softmax of each row of ``x`` [rows, cols] with Liger: https://github.com/linkedin/Liger-Kernel."""
    try:
        from liger_kernel.ops.softmax import LigerSoftmaxFunction
    except ModuleNotFoundError as error:
        raise Unsupported(f"it needs the package {error.name}; pip install liger-kernel") from None

    y: Tensor = LigerSoftmaxFunction.apply(x)
    return y
