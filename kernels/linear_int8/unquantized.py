"""The same linear layer with its weight in the dtype of x: what int8 is to beat."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, *, dense: Tensor) -> Tensor:
    """Compute x dense^T by cuBLAS; shapes and dtypes as in ``kernels.linear_int8``. The int8 weight is not read."""
    return F.linear(x, dense)
