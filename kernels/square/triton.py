"""Square in Triton. Forward reads one element and writes one, backward reads two, so the speed is that of memory."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..triton_device import LANES, programs_for, require_floats, require_gpu
from ..triton_launch import each_time, planned, repeatable

BLOCK = 1024  # elements of a program: with 4 warps, one 128-bit access of a thread in 16 bits, two in float32


@triton.jit
def _square(a_ptr, y_ptr, count, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    # int64, because int32 offsets overflow at 2**31 elements.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    whole = count // LANES * LANES
    if first < whole:
        _square_of(a_ptr, y_ptr, index, index < whole, ARITHMETIC)
    else:  # see ``programs_for``
        last = whole + tl.arange(0, LANES)
        _square_of(a_ptr, y_ptr, last, last < count, ARITHMETIC)


@triton.jit
def _square_of(a_ptr, y_ptr, index, inside, ARITHMETIC: tl.constexpr):
    a = tl.load(a_ptr + index, mask=inside).to(ARITHMETIC)
    tl.store(y_ptr + index, (a * a).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _square_backward(a_ptr, dy_ptr, da_ptr, count, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    whole = count // LANES * LANES
    if first < whole:
        _backward_of(a_ptr, dy_ptr, da_ptr, index, index < whole, ARITHMETIC)
    else:
        last = whole + tl.arange(0, LANES)
        _backward_of(a_ptr, dy_ptr, da_ptr, last, last < count, ARITHMETIC)


@triton.jit
def _backward_of(a_ptr, dy_ptr, da_ptr, index, inside, ARITHMETIC: tl.constexpr):
    a = tl.load(a_ptr + index, mask=inside).to(ARITHMETIC)
    dy = tl.load(dy_ptr + index, mask=inside).to(ARITHMETIC)
    tl.store(da_ptr + index, (2 * a * dy).to(da_ptr.dtype.element_ty), mask=inside)


def square(a: Tensor) -> Tensor:
    """Compute the square of each element of ``a``; shapes and dtypes as in ``kernels.square``. ``y`` is contiguous.

    An ``a`` that is not contiguous is copied first. The result can be differentiated once.

    Raises:
        Unsupported: ``a`` is not on a GPU and Triton's interpreter is off, or ``a`` has another dtype.

    """
    if a.requires_grad and torch.is_grad_enabled():
        return apply(_Differentiable, a)
    return _forward(a)


@planned
def _forward(a: Tensor) -> Tensor:
    require_gpu(a)
    require_floats(a)
    a = a.contiguous()
    y = each_time(torch.empty_like, a)
    if a.numel():
        arithmetic = tl.float64 if a.dtype == torch.float64 else tl.float32
        grid = (programs_for(a.numel(), BLOCK),)
        repeatable(_square)[grid](a, y, a.numel(), ARITHMETIC=arithmetic, BLOCK=BLOCK, num_warps=4)
    return y


@planned
def _backward(a: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of ``a``, given the gradient ``dy`` of ``y``."""
    a, dy = a.contiguous(), dy.contiguous()
    da = each_time(torch.empty_like, a)
    if a.numel():
        arithmetic = tl.float64 if a.dtype == torch.float64 else tl.float32
        grid = (programs_for(a.numel(), BLOCK),)
        repeatable(_square_backward)[grid](a, dy, da, a.numel(), ARITHMETIC=arithmetic, BLOCK=BLOCK, num_warps=4)
    return da


class _Differentiable(torch.autograd.Function):
    """``square`` for autograd, which saves a only."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return _forward(a)

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor], dy: Tensor) -> Tensor:
        return _backward(saved[0], dy)
