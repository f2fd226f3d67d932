"""Attention from elementary operations: two products around a softmax, with the scores of all pairs in memory."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from ._operands import causal_mask


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() / sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(~causal_mask(q, k), -torch.inf)
    return scores.softmax(-1).to(q.dtype) @ v
