"""MLP of PyTorch: two calls for each layer; the bias is added within the product."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from ..spans import span

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


def mlp(x: Tensor, *params: Tensor, activation: str) -> Tensor:
    """Compute the forward pass; shapes and dtypes as in ``kernels.mlp``."""
    activate = ACTIVATIONS[activation]
    for index, (w, b) in enumerate(zip(params[::2], params[1::2], strict=True)):
        with span(f"layer_{index}"):
            x = activate(F.linear(x, w, b))
    return x
