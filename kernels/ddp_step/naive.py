"""Gradients of a rank by autograd, then an all-reduce of each: collectives begin when the backward has ended."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..mlp.torch import mlp
from ..spans import span


def ddp_step(x: Tensor, *params: Tensor, activation: str) -> tuple[Tensor, ...]:
    """Compute the mean gradients; shapes and dtypes as in ``kernels.ddp_step``."""
    with span("forward"):
        # Each rank divides by the number of ranks, so that a sum is a mean.
        loss = mlp(x, *params, activation=activation).mean() / dist.get_world_size()
    with span("backward"):
        gradients = torch.autograd.grad(loss, params)
    with span("all_reduce"):
        for gradient in gradients:
            dist.all_reduce(gradient)
    return gradients
