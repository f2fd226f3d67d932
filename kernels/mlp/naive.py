"""MLP from elementary operations: product, sum and activation of each layer are separate kernels."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor

from ..spans import span


def _gelu(x: Tensor) -> Tensor:
    # Compute in float32: rounded to 16 bits, 1 + erf would be 0 in the left tail.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (0.5 * wide * (1 + torch.erf(wide / sqrt(2)))).to(x.dtype)


# relu, not clamp: the derivative of clamp at 0 is 1, that of the other implementations is 0.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": _gelu, "relu": torch.relu}


def mlp(x: Tensor, *params: Tensor, activation: str) -> Tensor:
    """Compute the forward pass; shapes and dtypes as in ``kernels.mlp``."""
    activate = ACTIVATIONS[activation]
    for index, (w, b) in enumerate(zip(params[::2], params[1::2], strict=True)):
        with span(f"layer_{index}"):
            x = activate(x @ w.T + b)
    return x
