"""Pairwise distances of PyTorch. Beyond 25 rows it expands the square into a matrix product, else it subtracts."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported

DTYPES = (torch.float32, torch.float64)


def cdist(a: Tensor, b: Tensor, *, p: int) -> Tensor:
    """Compute the distances between the rows of ``a`` and ``b``; shapes and dtypes as in ``kernels.cdist``.

    Raises:
        Unsupported: ``a`` is float16 or bfloat16, for which PyTorch has no such kernel.

    """
    if a.dtype not in DTYPES:
        raise Unsupported(f"torch.cdist has no {a.dtype} kernel; use float32, or another implementation")
    return torch.cdist(a, b, p=p)
