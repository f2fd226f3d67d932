"""A ring of sends: each band of rows travels around the ranks, and each adds its product before it passes the sum on.

A rank multiplies the next band while sums travel (the collective matmul of Wang et al. 2023, ASPLOS). After that every
rank has the whole sum of one band, and an all-gather spreads them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..ring import start_passing, wait_for


def matmul_all_reduce(a: Tensor, b: Tensor) -> Tensor:
    """Compute the sum of products; shapes and dtypes as in ``kernels.matmul_all_reduce``."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    height = -(-len(a) // ranks)
    bands = [a[place * height : (place + 1) * height] for place in range(ranks)]
    y = a.new_empty(ranks, height, b.shape[1])

    def product(place: int) -> Tensor:
        sums = y[place] if place == rank else a.new_empty(height, b.shape[1])
        torch.mm(bands[place], b, out=sums[: len(bands[place])])
        return sums

    travelling = product((rank - 1) % ranks)  # rank r ends with the sum of band r
    for step in range(2, ranks + 1):
        (arriving,), works = start_passing([travelling])
        here = product((rank - step) % ranks)
        wait_for(works)
        travelling = here.add_(arriving)
    whole = y.flatten(0, 1)
    dist.all_gather_into_tensor(whole, travelling)
    return whole[: len(a)]
