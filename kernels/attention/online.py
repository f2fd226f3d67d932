"""Attention block by block with an online softmax, as lectures explain flash attention: a step towards it.

Each step takes ``block`` keys. It keeps the largest score of a query so far, the sum of weights relative to it, and the
weighted sum of values. If the largest score grows, what was summed before is scaled down. So each key and each value is
read once, and no more than ``block`` scores of a query are in memory. Every step is several kernels, whose tensors go
through memory; Triton keeps them in registers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._operands import for_each_head, hidden_keys, scale_of


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, block: int = 256) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``.

    Args:
        q: queries.
        k: keys.
        v: values.
        causal: does a query see no later keys?
        block: keys of a step.

    """
    k, v = (for_each_head(x, q.shape[1]) for x in (k, v))
    largest = q.new_full((*q.shape[:3], 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(largest)
    y = torch.zeros_like(q, dtype=torch.float32)
    for start in range(0, k.shape[2], block):
        keys, values = k[:, :, start : start + block], v[:, :, start : start + block]
        scores = (q @ keys.transpose(-1, -2)).float() * scale_of(q.shape[3])
        if causal:
            scores = scores.masked_fill(hidden_keys(q, k, start, start + keys.shape[2]), -torch.inf)
        now = torch.maximum(largest, scores.amax(-1, keepdim=True).detach())  # y does not depend on it
        base = now.masked_fill(now == -torch.inf, 0.0)  # no key so far has a weight
        weights, factor = (scores - base).exp(), (largest - base).exp()
        total = total * factor + weights.sum(-1, keepdim=True)
        y = y * factor + (weights.to(q.dtype) @ values).float()
        largest = now
    return (y / total).to(q.dtype)
