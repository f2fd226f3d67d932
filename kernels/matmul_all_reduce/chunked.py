"""A product in bands of rows: the all-reduce of a band runs while the next one is multiplied."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def matmul_all_reduce(a: Tensor, b: Tensor, *, chunks: int = 4) -> Tensor:
    """Compute the sum of products in ``chunks`` bands; shapes and dtypes as in ``kernels.matmul_all_reduce``."""
    y = a.new_empty(len(a), b.shape[1])
    works = []
    for rows, band in zip(a.chunk(chunks), y.chunk(chunks), strict=True):
        torch.mm(rows, b, out=band)
        works.append(dist.all_reduce(band, async_op=True))
    for work in works:
        work.wait()
    return y
