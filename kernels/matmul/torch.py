"""Matrix product as PyTorch has it: cuBLAS on an NVIDIA GPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels import Unsupported


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``. Whether float32 uses tf32 is PyTorch's global setting.

    float8 is summed with ``use_fast_accum``, which is what makes it faster than 16 bits; a ``b`` that is not stored along
    k is copied first, for cuBLAS takes no other.

    Raises:
        Unsupported: float8, and a size, GPU or version of torch that its product is not there for.

    """
    if a.dtype != torch.float8_e4m3fn:
        return a @ b
    if b.stride(0) != 1:
        b = b.t().contiguous().t()
    scale_a = _one(a.device) if scale_a is None else scale_a
    scale_b = _one(a.device) if scale_b is None else scale_b
    try:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda)
    except RuntimeError as error:
        raise Unsupported(f"torch has no float8 product of these: {str(error).splitlines()[0]}") from error


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)
