"""A backward by hand, which starts the all-reduce of a layer's gradients as soon as they are computed.

The layers before it are computed meanwhile, as DistributedDataParallel does by hooks. torch.compile sees the whole step
as one graph, with its collectives.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import all_reduce, wait_tensor

from ..spans import span


def ddp_step(x: Tensor, *params: Tensor, activation: str) -> tuple[Tensor, ...]:
    """Compute the mean gradients; shapes and dtypes as in ``kernels.ddp_step``."""
    weights, biases = params[::2], params[1::2]
    inputs: list[Tensor] = [x]  # of each layer
    sums: list[Tensor] = []  # of each layer, which its activation takes
    reduced: list[Tensor] = []
    with torch.no_grad():
        with span("forward"):
            for w, b in zip(weights, biases, strict=True):
                sums.append(F.linear(inputs[-1], w, b))
                inputs.append(F.gelu(sums[-1]) if activation == "gelu" else F.relu(sums[-1]))
        y, group = inputs.pop(), dist.group.WORLD
        with span("backward"):
            # Of the mean of all ranks' rows, so that the sum over ranks is the gradient.
            dh = torch.full_like(y, 1 / (y.numel() * dist.get_world_size()))
            for layer in reversed(range(len(weights))):
                z = sums[layer]
                dz = torch.ops.aten.gelu_backward(dh, z) if activation == "gelu" else dh * (z > 0)
                reduced += all_reduce(dz.sum(0), "sum", group), all_reduce(dz.T @ inputs[layer], "sum", group)
                if layer:
                    dh = dz @ weights[layer]
        with span("wait"):
            return tuple(wait_tensor(gradient) for gradient in reversed(reduced))
