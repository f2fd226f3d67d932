"""Square of PyTorch: one kernel."""

from __future__ import annotations

import torch
from torch import Tensor


def square(a: Tensor) -> Tensor:
    """Compute the square of each element of ``a``; shapes and dtypes as in ``kernels.square``."""
    return torch.square(a)
