"""Attention block by block with an online softmax, as lectures explain flash attention: a step towards it.

Each step takes ``block`` keys. It keeps the largest score of a query so far, the sum of weights relative to it, and the
weighted sum of values. If the largest score grows, what was summed before is scaled down. So each key and each value is
read once, and no more than ``block`` scores of a query are in memory. Every step is several kernels, whose tensors go
through memory; Triton keeps them in registers.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, block: int = 256) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``.

    Args:
        q: queries.
        k: keys.
        v: values.
        causal: does a query see no later keys?
        block: keys of a step.

    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    last = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])  # that each query sees
    largest = q.new_full((*q.shape[:3], 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(largest)
    y = torch.zeros_like(q, dtype=torch.float32)
    for start in range(0, k.shape[2], block):
        keys, values = k[:, :, start : start + block], v[:, :, start : start + block]
        scores = (q @ keys.transpose(-1, -2)).float() / sqrt(q.shape[3])
        if causal:
            hidden = torch.arange(start, start + keys.shape[2], device=q.device) > last
            scores = scores.masked_fill(hidden, -torch.inf)
        now = torch.maximum(largest, scores.amax(-1, keepdim=True).detach())  # y does not depend on it
        weights, factor = (scores - now).exp(), (largest - now).exp()
        total = total * factor + weights.sum(-1, keepdim=True)
        y = y * factor + (weights.to(q.dtype) @ values).float()
        largest = now
    return (y / total).to(q.dtype)
