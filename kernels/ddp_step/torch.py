"""Gradients by DistributedDataParallel: all-reduces of buckets, each during the rest of the backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from ..mlp.torch import mlp
from ..spans import span

_wrapped = WeakTensorKeyDictionary()  # DistributedDataParallel by the first parameter, whose memory it shares


class _Mlp(torch.nn.Module):
    """A module around ``params``; its parameters share their memory."""

    def __init__(self, params: tuple[Tensor, ...], activation: str) -> None:
        super().__init__()
        self.params = torch.nn.ParameterList(torch.nn.Parameter(param.detach()) for param in params)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return mlp(x, *self.params, activation=self.activation)


def ddp_step(x: Tensor, *params: Tensor, activation: str, bucket_mb: float = 25.0) -> tuple[Tensor, ...]:
    """Compute the mean gradients; shapes and dtypes as in ``kernels.ddp_step``.

    ``bucket_mb`` is the least size of a bucket, in MiB; the first one that is full has at most 1 MiB.
    """
    if params[0] not in _wrapped:
        _wrapped[params[0]] = DistributedDataParallel(
            _Mlp(params, activation), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
    module = _wrapped[params[0]]
    for param in module.parameters():
        param.grad = None
    with span("forward"):
        loss = module(x).mean()
    with span("backward"):
        loss.backward()
    return tuple(param.grad for param in module.parameters())
