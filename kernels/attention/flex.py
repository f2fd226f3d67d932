"""Attention by PyTorch's flex_attention: a template in Triton that torch.compile fills in, with a mask by blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..unsupported import Unsupported
from ._operands import require_attention

LEAST_D = 16
MOST_SHAPES = 256  # compiled for; torch runs what comes after its limit, 8, without compiling it


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``. The first call of a shape compiles.

    Raises:
        Unsupported: the result requires a gradient on a CPU, or d is less than 16 on a GPU.

    """
    require_attention(q, k, v, causal)
    if not q.is_cuda and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise Unsupported("flex_attention has no backward on a CPU; use pass=fwd, or device=cuda")
    if q.is_cuda and q.shape[3] < LEAST_D:
        raise Unsupported(f"flex_attention takes d of at least {LEAST_D} on a GPU; this is {q.shape[3]}")
    mask = _causal(q.shape[2], k.shape[2], q.device) if causal else None
    if torch.compiler.is_compiling():
        return _attention(q, k, v, mask)
    with torch._dynamo.config.patch(recompile_limit=MOST_SHAPES):
        return _compiled()(q, k, v, mask)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    y: Tensor = flex_attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return y


@cache
def _compiled() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(_attention, dynamic=False, fullgraph=True)
    return compiled


@cache
def _causal(length: int, kv_length: int, device: torch.device) -> Any:
    offset = kv_length - length

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + offset >= key

    return create_block_mask(sees, None, None, length, kv_length, device=device)
