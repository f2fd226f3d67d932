"""MLP with a product, a sum and an activation of elementary operations in each layer, every one a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor

from ..spans import span


def _gelu(x: Tensor) -> Tensor:
    # In float32, because rounding 1 + erf to 16 bits would leave nothing of the left tail.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (0.5 * wide * (1 + torch.erf(wide / sqrt(2)))).to(x.dtype)


# Not clamp for relu: its derivative at 0, where the others have 0, is 1.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": _gelu, "relu": torch.relu}


def mlp(x: Tensor, *params: Tensor, activation: str) -> Tensor:
    """Forward pass, as in ``kernels.mlp``."""
    activate = ACTIVATIONS[activation]
    for index, (w, b) in enumerate(zip(params[::2], params[1::2], strict=True)):
        with span(f"layer_{index}"):
            x = activate(x @ w.T + b)
    return x
