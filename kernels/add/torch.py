"""Sum as PyTorch has it: one kernel."""

from __future__ import annotations

from torch import Tensor


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``, as in ``kernels.add``."""
    return a + b
