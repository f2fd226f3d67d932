"""A ring in elementary operations, with the scores of a block in memory. A block travels when the last is computed."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..attention._operands import for_each_head, scale_of
from ._passing import passed_around
from ._positions import positions


def ring_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, variant: str) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.ring_attention``."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = q.shape[2]
    own = positions(length, rank, ranks, variant, q.device)
    largest = torch.full(q.shape[:3], -torch.inf, device=q.device)  # score of each query so far
    total = torch.zeros_like(largest)  # of the weights, relative to the largest score
    y = torch.zeros(q.shape, device=q.device)
    for source, block in passed_around((k, v), overlap=False):
        keys, values = (for_each_head(x, q.shape[1]) for x in block)
        scores = (q @ keys.transpose(-1, -2)).float() * scale_of(q.shape[3])
        if causal:
            hidden = positions(length, source, ranks, variant, q.device) > own[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
        new = torch.maximum(largest, scores.amax(-1))  # finite: the first block holds each query's own key
        weights, factor = torch.exp(scores - new[..., None]), torch.exp(largest - new)
        y = y * factor[..., None] + (weights.to(q.dtype) @ values).float()
        total, largest = total * factor + weights.sum(-1), new
    return (y / total[..., None]).to(q.dtype)
