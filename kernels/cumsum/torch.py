"""Cumulative sum of PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def cumsum(x: Tensor) -> Tensor:
    """Compute the cumulative sum of each row of ``x``; shapes and dtypes as in ``kernels.cumsum``.

    ``torch.cumsum`` of a 16-bit type adds in that type on a GPU, so that rows of a few hundred elements lose most of
    their digits. Here it adds in float32, which takes a kernel more before and after it.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.cumsum(x, -1, dtype=wide).to(x.dtype)
