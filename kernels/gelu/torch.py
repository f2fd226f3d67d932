"""GELU as PyTorch has it: one fused kernel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

APPROXIMATE = {"tanh": "tanh", "erf": "none"}  # PyTorch's words for the two forms


def gelu(x: Tensor, *, form: str) -> Tensor:
    """GELU of ``x``, as in ``kernels.gelu``."""
    return F.gelu(x, approximate=APPROXIMATE[form])
