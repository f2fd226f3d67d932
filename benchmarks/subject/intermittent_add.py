"""A sum of two vectors of which one element is wrong in some calls: an own operation, for ``intermittent``."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from kernel_runner import cuda_kernel

_drawn = random.SystemRandom()  # no seed of the runner repeats its numbers


def inputs(count: int = 4096) -> tuple[Tensor, Tensor]:
    """Return two float32 vectors of ``count`` elements."""
    return torch.randn(count), torch.randn(count)


def reference(x: Tensor, y: Tensor, *, element: int = 0, percent: int = 20) -> Tensor:
    """Return the sum; the options are for the implementations that are sometimes wrong."""
    return x + y


def on_host(x: Tensor, y: Tensor, *, element: int = 0, percent: int = 20) -> Tensor:
    """Return the sum, with ``element`` too large by one in ``percent`` of the calls."""
    out = x + y
    if _drawn.random() * 100 < percent:
        out[element] += 1
    return out


on_device = cuda_kernel(
    "intermittent.cu",
    "sometimes<{T}>",
    grid=lambda x: min(-(-x.numel() // 256), 1024),
    block=256,
    arguments=lambda x, y, out, *, element=0, percent=20: (x, y, out, x.numel(), element, percent),
)
