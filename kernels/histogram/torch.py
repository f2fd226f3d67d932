"""Histogram of PyTorch: ``torch.histc``, whose bins are those of ``kernels.histogram``.

It counts in float32, so a bin of more than 2**24 elements is wrong on a GPU. ``torch.bincount`` counts in int64. But it
takes whole numbers, which other kernels have to compute, and its caller waits for the largest of them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def histogram(x: Tensor, *, bins: int) -> Tensor:
    """Count the elements of ``x`` in each bin; shapes and dtypes as in ``kernels.histogram``."""
    return torch.histc(x, bins, 0, 1).long()
