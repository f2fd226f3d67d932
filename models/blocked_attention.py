"""Causal attention for references: in blocks of heads, and with a backward as fused kernels compute it.

The backward computes the weights again, and takes sum_j p_ij dp_ij from y, as it is stored: sum_j dy_ij y_ij. So a
gradient that cancels, as that of a bias of all keys does, has the errors that those kernels have.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, most: int) -> Tensor:
    """Return y [batch, heads, length, d] of q, and of k and v [batch, kv_heads, length, d].

    A block has ``most`` scores, or more if those of the queries that share a head of keys are more.
    """
    kv_heads = k.shape[1]
    y: Tensor = _Attention.apply(*(x.unflatten(1, (kv_heads, -1)).flatten(0, 1) for x in (q, k, v)), most)
    return y.view(-1, q.shape[1], *y.shape[2:])


class _Attention(torch.autograd.Function):
    """y of q [n, group, length, d], and of k and v [n, 1, length, d]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, most: int) -> Tensor:
        y = torch.cat([_weights(q[at], k[at]).to(q.dtype) @ v[at] for at in _blocks(q, most)])
        ctx.save_for_backward(q, k, v, y)
        ctx.most = most
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, y = ctx.saved_tensors
        blocks = [_gradients(*(x[at] for x in (q, k, v, y, dy))) for at in _blocks(q, ctx.most)]
        dq, dk, dv = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return dq, dk, dv, None


def _blocks(q: Tensor, most: int) -> Iterator[slice]:
    step = max(1, most // (q.shape[1] * q.shape[2] ** 2))
    yield from (slice(start, start + step) for start in range(0, q.shape[0], step))


def _weights(q: Tensor, k: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT).float() / sqrt(q.shape[3])
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def _gradients(q: Tensor, k: Tensor, v: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = _weights(q, k)
    delta = (dy.float() * y.float()).sum(-1, keepdim=True)
    ds = (p * ((dy @ v.mT).float() - delta) / sqrt(q.shape[3])).to(q.dtype)
    dk, dv = ((pairs.mT @ x).sum(1, keepdim=True) for pairs, x in ((ds, q), (p.to(q.dtype), dy)))
    return ds @ k, dk, dv
