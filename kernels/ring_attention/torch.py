"""All keys and values on every rank, by an all-gather, then attention of PyTorch.

The keys of ``variant="ring"`` are in order, so causal attention leaves out those behind a query. Those of ``"striped"``
need a mask in memory.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..attention.torch import attention
from ..spans import span
from ._positions import positions


def ring_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, variant: str) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.ring_attention``."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with span("all_gather"):
        own = torch.stack((k, v))
        every = own.new_empty(ranks, *own.shape)
        dist.all_gather_into_tensor(every.flatten(0, 1), own)
    end = rank + 1 if causal and variant == "ring" else ranks
    k, v = (every[:end, part].movedim(0, 2).flatten(2, 3) for part in (0, 1))
    with span("attention"):
        if not causal or variant == "ring":
            return attention(q, k, v, causal=causal)
        length = q.shape[2]
        of_keys = torch.cat([positions(length, source, ranks, variant, q.device) for source in range(ranks)])
        mask = of_keys <= positions(length, rank, ranks, variant, q.device)[:, None]
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])
