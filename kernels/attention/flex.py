"""Attention by PyTorch's flex_attention: a template in Triton that torch.compile fills in, with a mask by blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ..unsupported import Unsupported
from ._operands import require_attention

BLOCK = 128  # queries and keys of a block of the mask
LEAST_D = 16
MOST_SHAPES = 256  # compiled for; torch runs what comes after its limit, 8, without compiling it


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``.

    The first call of a shape compiles, and makes the mask, which later calls use again.

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


@lru_cache(maxsize=64)
def _causal(length: int, kv_length: int, device: torch.device) -> BlockMask:
    """Return which blocks are seen, from their places; create_block_mask would make the mask of all pairs first."""
    offset = kv_length - length
    first = BLOCK * torch.arange(-(-length // BLOCK), device=device)[:, None]
    start = BLOCK * torch.arange(-(-kv_length // BLOCK), device=device)
    # By all queries of a block, which has to be a whole one, and by some.
    full = (start + BLOCK <= first + offset + 1) & (first + BLOCK <= length)
    some = (start <= (first + BLOCK - 1).clamp(max=length - 1) + offset) & ~full

    def listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
        order = blocks.int().argsort(dim=1, descending=True, stable=True)
        return blocks.sum(1, dtype=torch.int32)[None, None], order.int()[None, None]

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + offset >= key

    return BlockMask.from_kv_blocks(
        *listed(some), *listed(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(length, kv_length)
    )
