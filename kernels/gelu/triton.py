"""GELU in Triton: each element is read once and written once, so it runs at the speed of memory.

The tanh form is computed as x * sigmoid(2 u) = x / (1 + exp(-2 u)): the same, since 1 + tanh(u) = 2 sigmoid(2 u).
It cancels nowhere, and where exp overflows it ends in x / inf = 0; the usual (e - 1) / (e + 1) with e = exp(2 u) is NaN
from x = 10.07 on in float32.

Backward reads x and dy and writes dx, as fast as that many bytes can be copied. So no more than two operations of the
special function units an element: the form erf takes erf and the density from one exp (Abramowitz & Stegun 7.1.26, off
by 1.5e-7), and the form tanh takes the sigmoid and its complement from one exp.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.triton_device import on_device_of, require_gpu

BLOCK = 1024  # elements a program: at 4 warps one 128-bit access a thread in 16 bits, and two in float32

MINUS_2_SQRT_2_OVER_PI = tl.constexpr(-1.5957691216057308)
SQRT_HALF = tl.constexpr(0.7071067811865476)


BACKWARD_BYTES = 2048  # of each tensor a program of the backward: at 4 warps, one 128-bit access a thread

MINUS_HALF_LOG2_E = tl.constexpr(-0.7213475204444817)
MINUS_2_SQRT_2_OVER_PI_LOG2_E = tl.constexpr(-2.302208198144325)
SQRT_1_OVER_2_PI = tl.constexpr(0.3989422804014327)

# From here on y' is 0 or 1 up to 2e-20; and e = exp(80.6) is still a float32.
SATURATED = tl.constexpr(9.7)


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


@triton.jit
def erf_and_exp(x):
    """erf(x / sqrt(2)), off by 1.5e-7, and exp(-x^2 / 2), of which it is made, in float32."""
    e = tl.exp2(x * x * MINUS_HALF_LOG2_E)
    t = 1 / (1 + 0.23164189 * tl.abs(x))
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * e
    return tl.where(x < 0, tail - 1, 1 - tail), e


@triton.jit
def _slope(x, TANH: tl.constexpr):
    """y'(x), which is 0 or 1 at either infinity, and NaN where x is."""
    near = tl.where(x > SATURATED, SATURATED, tl.where(x < -SATURATED, -SATURATED, x))
    if TANH:
        cube = near * near * 0.044715
        e = tl.exp2((near + near * cube) * MINUS_2_SQRT_2_OVER_PI_LOG2_E)
        p = 1 / (1 + e)
        return p + near * (1 + 3 * cube) * -MINUS_2_SQRT_2_OVER_PI * (p * (e * p))
    if x.dtype == tl.float64:
        erf, e = tl.erf(near * SQRT_HALF), tl.exp(-0.5 * near * near)
    else:
        erf, e = erf_and_exp(near)
    return 0.5 + 0.5 * erf + near * e * SQRT_1_OVER_2_PI


@triton.jit
def _gelu_backward(x_ptr, dy_ptr, dx_ptr, count, TANH: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    x = tl.load(x_ptr + index, mask=inside).to(ARITHMETIC)
    dy = tl.load(dy_ptr + index, mask=inside).to(ARITHMETIC)
    tl.store(dx_ptr + index, (dy * _slope(x, TANH)).to(dx_ptr.dtype.element_ty), mask=inside)


def gelu(x: Tensor, *, form: str) -> Tensor:
    """GELU of ``x``, as in ``kernels.gelu``. ``y`` is contiguous; an ``x`` that is not is copied first.

    It can be differentiated once.

    Raises:
        Unsupported: ``x`` is not on a GPU, and Triton's interpreter is off.

    """
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Differentiable.apply(x, form)
        return y
    require_gpu(x)
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    grid = (triton.cdiv(x.numel(), BLOCK),)
    with on_device_of(x):
        _gelu[grid](x, y, x.numel(), TANH=form == "tanh", ARITHMETIC=arithmetic, BLOCK=BLOCK, num_warps=4)
    return y


def _backward(x: Tensor, dy: Tensor, form: str) -> Tensor:
    """The gradient of ``x`` from that of ``y``."""
    x, dy = x.contiguous(), dy.contiguous()
    dx = torch.empty_like(x)
    if x.numel() == 0:
        return dx
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    block = BACKWARD_BYTES // x.element_size()
    grid = (triton.cdiv(x.numel(), block),)
    with on_device_of(x):
        _gelu_backward[grid](x, dy, dx, x.numel(), TANH=form == "tanh", ARITHMETIC=arithmetic, BLOCK=block, num_warps=4)
    return dx


class _Differentiable(torch.autograd.Function):
    """``gelu``, of which autograd keeps x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, form: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.form = form
        return gelu(x, form=form)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _backward(x, dy, ctx.form), None
