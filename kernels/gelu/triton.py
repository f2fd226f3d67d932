"""GELU in Triton: each element is read once and written once, so it runs at the speed of memory.

The tanh form is computed as x * sigmoid(2 u) = x / (1 + exp(-2 u)): the same, since 1 + tanh(u) = 2 sigmoid(2 u).
It cancels nowhere, and where exp overflows it ends in x / inf = 0; the usual (e - 1) / (e + 1) with e = exp(2 u) is NaN
from x = 10.07 on in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_device import require_gpu

BLOCK = 1024  # elements a program: at 4 warps one 128-bit access a thread in 16 bits, and two in float32

MINUS_2_SQRT_2_OVER_PI = tl.constexpr(-1.5957691216057308)
SQRT_HALF = tl.constexpr(0.7071067811865476)


@triton.jit
def _gelu(x_ptr, y_ptr, count, TANH: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    # int64, because int32 offsets wrap past 2**31 elements.
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    x = tl.load(x_ptr + index, mask=inside).to(ARITHMETIC)
    if TANH:
        y = x / (1 + tl.exp((x + 0.044715 * x * x * x) * MINUS_2_SQRT_2_OVER_PI))
    else:
        y = 0.5 * x * (1 + tl.erf(x * SQRT_HALF))
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=inside)


def gelu(x: Tensor, *, form: str) -> Tensor:
    """GELU of ``x``, as in ``kernels.gelu``. ``y`` is contiguous; an ``x`` that is not is copied first.

    Raises:
        Unsupported: ``x`` is not on a GPU, and Triton's interpreter is off.

    """
    require_gpu(x)
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    grid = (triton.cdiv(x.numel(), BLOCK),)
    # Triton launches on the current device, wherever x may be.
    with torch.cuda.device_of(x):
        _gelu[grid](x, y, x.numel(), TANH=form == "tanh", ARITHMETIC=arithmetic, BLOCK=BLOCK, num_warps=4)
    return y
