"""Linear layer with an int8 weight in PyTorch: its own kernel for a scale a row, else dequantized, then multiplied.

For groups PyTorch has kernels of int4, not of int8. torch.compile may fuse what is written here with the product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._operands import dequantized


def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, *, group: int) -> Tensor:
    """Compute y in the dtype of ``x``; shapes and dtypes as in ``kernels.linear_int8``."""
    if scale.shape[1] == 1 and not torch.compiler.is_compiling() and _has_kernel(x):
        return torch._weight_int8pack_mm(x.contiguous(), weight.contiguous(), scale[:, 0].contiguous())
    return F.linear(x, dequantized(weight, scale, group))


def _has_kernel(x: Tensor) -> bool:
    """Return whether this PyTorch has the kernel for ``x``; on a GPU from 2.9 on."""
    # In bfloat16 on a CPU, torch 2.13 reads beyond rows of another length, and may crash.
    whole = x.shape[1] % 16 == 0
    return whole and torch._C._dispatch_has_kernel_for_dispatch_key("aten::_weight_int8pack_mm", x.device.type.upper())
