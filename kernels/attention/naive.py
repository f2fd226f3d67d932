"""Attention from elementary operations: two products around a softmax, with the scores of all pairs in memory.

The products round scores and weights to the dtype, as the operations of torch do: a score above 65504 overflows in
float16. The softmax is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._operands import for_each_head, hidden_keys, scale_of


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``."""
    k, v = (for_each_head(x, q.shape[1]) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() * scale_of(q.shape[3])
    if causal:
        scores = scores.masked_fill(hidden_keys(q, k), -torch.inf)
    return scores.softmax(-1).to(q.dtype) @ v
