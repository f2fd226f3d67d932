"""Sending and receiving at once, by torch.distributed: NCCL on GPUs, gloo on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ring import pass_on


def send_recv(x: Tensor) -> Tensor:
    """Pass on, as in ``kernels.send_recv``."""
    y = torch.empty_like(x)
    pass_on(x, y)
    return y
