"""Strided copy in Triton. A warp reads 32 numbers, of which each lies ``stride`` after the one before.

The memory is read in sectors of 32 bytes. So each number of 4 bytes costs a sector of its own from a stride of 8 on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import require_gpu
from ..triton_launch import each_time, planned, repeatable

BLOCK = 1024  # elements of a program
WARPS = 4  # of a program


@triton.jit
def _strided_copy(x_ptr, y_ptr, x_stride, elements, BLOCK: tl.constexpr):
    # int64, because int32 offsets overflow at 2**31 elements.
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < elements
    tl.store(y_ptr + index, tl.load(x_ptr + index * x_stride, mask=inside), mask=inside)


@planned
def strided_copy(x: Tensor, *, stride: int) -> Tensor:
    """Copy every ``stride``-th number of ``x``; shapes and dtypes as in ``kernels.strided_copy``.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off.

    """
    require_gpu(x)
    elements = triton.cdiv(x.numel(), stride)
    y = each_time(torch.empty, (elements,), dtype=x.dtype, device=x.device)
    if elements:
        repeatable(_strided_copy)[(triton.cdiv(elements, BLOCK),)](
            x, y, x.stride(0) * stride, elements, BLOCK=BLOCK, num_warps=WARPS
        )
    return y
