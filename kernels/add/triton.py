"""Sum in Triton. It reads two elements and writes one, so its speed is that of memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import LANES, programs_for, require_gpu
from ..triton_launch import each_time, planned, repeatable
from ._alike import require_alike

BLOCK = 1024  # elements of a program: with 4 warps, one 128-bit access of a thread in 16 bits, two in float32


@triton.jit
def _add(a_ptr, b_ptr, y_ptr, count, BLOCK: tl.constexpr):
    # int64, because int32 offsets overflow at 2**31 elements.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    whole = count // LANES * LANES
    if first < whole:
        _sum(a_ptr, b_ptr, y_ptr, index, index < whole)
    else:  # see ``programs_for``
        last = whole + tl.arange(0, LANES)
        _sum(a_ptr, b_ptr, y_ptr, last, last < count)


@triton.jit
def _sum(a_ptr, b_ptr, y_ptr, index, inside):
    a, b = tl.load(a_ptr + index, mask=inside), tl.load(b_ptr + index, mask=inside)
    tl.store(y_ptr + index, a + b, mask=inside)


@planned
def add(a: Tensor, b: Tensor, *, BLOCK: int = BLOCK, num_warps: int = 4) -> Tensor:
    """Compute ``a + b``; shapes and dtypes as in ``kernels.add``. ``y`` is contiguous.

    Operands that are not contiguous are copied first.

    Args:
        a: a tensor.
        b: a tensor like ``a``.
        BLOCK: elements of a program, a power of 2.
        num_warps: warps of a program, a power of 2.

    Raises:
        Unsupported: ``a`` is not on a GPU and Triton's interpreter is off.
        ValueError: ``a`` and ``b`` differ in shape, dtype or device.

    """
    require_gpu(a)
    require_alike(a, b)
    a, b = a.contiguous(), b.contiguous()
    y = each_time(torch.empty_like, a)
    if a.numel():
        repeatable(_add)[(programs_for(a.numel(), BLOCK),)](a, b, y, a.numel(), BLOCK=BLOCK, num_warps=num_warps)
    return y
