"""Matrix product as PyTorch has it: cuBLAS on an NVIDIA GPU."""

from __future__ import annotations

from torch import Tensor


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``. Whether float32 uses tf32 is PyTorch's global setting."""
    return a @ b
