"""Checks of the operands of attention, for implementations that would read outside of tensors that do not fit."""

from __future__ import annotations

from math import log2, sqrt

import torch
from torch import Tensor

from ..unsupported import Unsupported

LOG2_E = log2(2.718281828459045)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def require_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    """Check shapes, dtypes and devices of the operands.

    Raises:
        Unsupported: the dtype is not one of ``DTYPES``.
        ValueError: the operands do not fit together, or a causal query would see no key.

    """
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"q, k and v are not [batch, heads, length, d] of one batch and d: {shapes}")
    if not k.shape[1] or q.shape[1] % k.shape[1] or not k.shape[2]:
        raise ValueError(f"{q.shape[1]} heads cannot share {k.shape[1]} heads of {k.shape[2]} keys")
    if q.dtype != k.dtype or q.dtype != v.dtype or q.device != k.device or q.device != v.device:
        raise ValueError("q, k and v have different dtypes or devices")
    if causal and k.shape[2] < q.shape[2]:
        raise ValueError(f"causal: {q.shape[2]} queries and {k.shape[2]} keys, so the first query would see no key")
    if q.dtype not in DTYPES:
        raise Unsupported(f"attention takes float16, bfloat16 and float32; convert from {q.dtype}")


def scale_of(d: int) -> float:
    """Return the factor of the scores."""
    return 1 / sqrt(d)


def for_each_head(x: Tensor, heads: int) -> Tensor:
    """Return keys or values with a copy for each of ``heads`` query heads; ``x`` if it has so many."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def hidden_keys(q: Tensor, k: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """Return which of the keys from ``start`` to ``stop`` a causal query does not see, bool [length, keys]."""
    last = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    return torch.arange(start, k.shape[2] if stop is None else stop, device=q.device) > last
