"""Matrix product as PyTorch has it: cuBLAS on an NVIDIA GPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels import Unsupported

MULTIPLE = 16  # elements, of which cuBLAS wants whole numbers in float8: 16 bytes of alignment
FLOAT8 = (8, 9)  # the compute capability from which on tensor cores multiply it


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``. Whether float32 uses tf32 is PyTorch's global setting.

    float8 is summed with ``use_fast_accum``, the faster of two ways. A ``b`` that is not stored along k is copied, for
    cuBLAS takes no other.

    Raises:
        Unsupported: float8, and a size, GPU or version of torch that its product is not there for.

    """
    if a.dtype != torch.float8_e4m3fn:
        return a @ b
    if b.stride(0) != 1:
        b = b.t().contiguous().t()
    scale_a = _one(a.device) if scale_a is None else scale_a
    scale_b = _one(a.device) if scale_b is None else scale_b
    if a.is_cuda and (a.shape[1] % MULTIPLE or b.shape[1] % MULTIPLE):
        raise Unsupported(f"cuBLAS multiplies float8 where k and n are multiples of {MULTIPLE}; give such a size")
    if a.is_cuda and torch.cuda.get_device_capability(a.device) < FLOAT8:
        raise Unsupported("cuBLAS multiplies float8 on GPUs of compute capability 8.9 and newer; use one of those")
    try:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda)
    except NotImplementedError as error:
        raise Unsupported("this torch has no float8 product on a CPU; use a newer one, or a GPU") from error


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)
