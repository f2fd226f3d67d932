"""GELU of PyTorch: one fused kernel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

APPROXIMATE = {"tanh": "tanh", "erf": "none"}  # PyTorch's names of the two forms


def gelu(x: Tensor, *, form: str) -> Tensor:
    """Compute GELU of each element of ``x``; shapes and dtypes as in ``kernels.gelu``."""
    return F.gelu(x, approximate=APPROXIMATE[form])
