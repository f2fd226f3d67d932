"""Sum from additions of halves: one kernel for each halving."""

from __future__ import annotations

import torch
from torch import Tensor

from ..halving import halve


def reduce_sum(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the sum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.reduce_sum``."""
    # Add in float32: a sum in 16 bits stops growing once it is 2**8 or 2**11 times as large as its terms.
    return halve(x.to(torch.promote_types(x.dtype, torch.float32)), dim, torch.add).to(x.dtype)
