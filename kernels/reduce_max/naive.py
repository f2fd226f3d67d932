"""Maximum from comparisons of halves: one kernel for each halving."""

from __future__ import annotations

import torch
from torch import Tensor

from ..halving import halve


def reduce_max(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the maximum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.reduce_max``."""
    return halve(x, dim, torch.maximum)
