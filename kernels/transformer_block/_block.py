"""The block, made of whichever attention, GELU and norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..spans import span

Function = Callable[..., Tensor]


def composed(attention: Function, gelu: Function, layernorm: Function, rmsnorm: Function) -> Function:
    """Return the function ``transformer_block`` that calls these."""

    def transformer_block(x: Tensor, *tensors: Tensor, style: str, heads: int, kv_heads: int, eps: float) -> Tensor:
        """Compute the block; shapes and dtypes as in ``kernels.transformer_block``."""
        llama, (batch, length, _), take = style == "llama", x.shape, iter(tensors)
        angles = next(take) if llama else None

        def linear(x: Tensor) -> Tensor:
            return F.linear(x, next(take), None if llama else next(take))

        def norm(x: Tensor) -> Tensor:
            with span("norms"):
                return rmsnorm(x, next(take), eps=eps) if llama else layernorm(x, next(take), next(take), eps=eps)

        h = norm(x)
        with span("projections"):
            h = linear(h).view(batch, length, heads + 2 * kv_heads, -1).transpose(1, 2)
        with span("attention"):
            q, k, v = h.split((heads, kv_heads, kv_heads), 1)
            if angles is not None:
                q, k = rotated(q, angles), rotated(k, angles)
            h = attention(q, k, v, causal=True)
        with span("projections"):
            x = x + linear(h.transpose(1, 2).flatten(2))
        h = norm(x)
        with span("mlp"):
            h = linear(h)
            gate, up = h.chunk(2, -1) if llama else (h, h)
            return x + linear(F.silu(gate) * up if llama else gelu(h, form="tanh"))

    return transformer_block


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Return ``x`` [..., length, d] with numbers j and j + d / 2 turned by the angle of their position."""
    (cos, sin), (first, second) = angles, x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
