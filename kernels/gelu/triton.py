"""GELU in Triton: each element is read once and written once, so it runs at the speed of memory.

The tanh form is computed as x * sigmoid(2 u) = x / (1 + exp(-2 u)): the same, since 1 + tanh(u) = 2 sigmoid(2 u).
It cancels nowhere, and where exp overflows it ends in x / inf = 0; the usual (e - 1) / (e + 1) with e = exp(2 u) is NaN
from x = 10.07 on in float32.

At that speed the form erf has room for some 25 instructions an element of 16 bits, too few for a library's erf, and for
a quotient as in Abramowitz & Stegun 7.1.26. So Phi(x) comes of one exp2: log2 Phi(-|x|) is nearly a parabola, and a
polynomial in |x|, fitted by Remez' exchange, is close to it, in the left tail too, where 1 + erf cancels.

Backward reads x and dy and writes dx. The form erf takes one exp2 for Phi and one for the density; the form tanh, the
sigmoid and its complement from one exp.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..second_derivative import no_second_derivative
from ..triton_device import on_device_of, require_floats, require_gpu
from ._form import is_tanh

BLOCK = 1024  # elements a program: at 4 warps one 128-bit access a thread in 16 bits, and two in float32

MINUS_2_SQRT_2_OVER_PI = tl.constexpr(-1.5957691216057308)
SQRT_HALF = tl.constexpr(0.7071067811865476)

# Of each tensor a program of the backward: at 4 warps, two 128-bit accesses a thread in 16 bits, and one in others.
BACKWARD_BYTES = {2: 4096, 4: 2048, 8: 2048}

MINUS_HALF_LOG2_E = tl.constexpr(-0.7213475204444817)
MINUS_2_SQRT_2_OVER_PI_LOG2_E = tl.constexpr(-2.302208198144325)
SQRT_1_OVER_2_PI = tl.constexpr(0.3989422804014327)
LOG2_SQRT_1_OVER_2_PI = tl.constexpr(-1.3257480647361592)

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
    elif ARITHMETIC == tl.float64:  # noqa: SIM300  # not a constant
        y = 0.5 * x * (1 + tl.erf(x * SQRT_HALF))
    else:
        y = x * normal_cdf(x, y_ptr.dtype.element_ty == tl.float32)
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def normal_cdf(x, FINE: tl.constexpr):
    """Phi(x) in float32, off by 5e-8 where ``FINE``, else by 3e-7, both besides the roundings of float32 itself.

    In the left tail, to a relative 4e-4 and 3e-3 at x = -8, and to a tenth of that at x = -4.
    """
    a = tl.abs(x)
    if FINE:
        log2 = -4.83386364e-09 * a + 2.08505041e-07
        log2 = log2 * a - 3.67061406e-06
        log2 = log2 * a + 3.2716281e-05
        log2 = log2 * a - 0.00012835695
        log2 = log2 * a - 0.000306408802
        log2 = log2 * a + 0.00730232225
        log2 = log2 * a - 0.0526637732
        log2 = log2 * a - 0.459154302
        log2 = log2 * a - 1.15111146
        log2 = log2 * a - 0.999999879
    else:
        log2 = -9.34124705e-07 * a + 4.38753642e-05
        log2 = log2 * a - 0.000802732605
        log2 = log2 * a + 0.00808682991
        log2 = log2 * a - 0.053305934
        log2 = log2 * a - 0.458911986
        log2 = log2 * a - 1.15114395
        log2 = log2 * a - 0.999999214
    tail = tl.exp2(log2)
    return tl.where(x < 0, tail, 1 - tail)


@triton.jit
def normal_cdf_and_slope(x, FINE: tl.constexpr):
    """Phi(x), and the derivative of x Phi(x), for finite ``x``; ``FINE`` as above."""
    if x.dtype == tl.float64:
        p, density = 0.5 + 0.5 * tl.erf(x * SQRT_HALF), tl.exp(-0.5 * x * x) * SQRT_1_OVER_2_PI
    else:
        p, density = normal_cdf(x, FINE), tl.exp2(x * x * MINUS_HALF_LOG2_E + LOG2_SQRT_1_OVER_2_PI)
    return p, p + x * density


@triton.jit
def _slope(x, TANH: tl.constexpr, FINE: tl.constexpr):
    """y'(x), which is 0 or 1 at either infinity, and NaN where x is."""
    near = tl.where(x > SATURATED, SATURATED, tl.where(x < -SATURATED, -SATURATED, x))
    if TANH:
        cube = near * near * 0.044715
        e = tl.exp2((near + near * cube) * MINUS_2_SQRT_2_OVER_PI_LOG2_E)
        p = 1 / (1 + e)
        slope = p + near * (1 + 3 * cube) * -MINUS_2_SQRT_2_OVER_PI * (p * (e * p))
    else:
        _, slope = normal_cdf_and_slope(near, FINE)
    return slope


@triton.jit
def _gelu_backward(x_ptr, dy_ptr, dx_ptr, count, TANH: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    x = tl.load(x_ptr + index, mask=inside).to(ARITHMETIC)
    dy = tl.load(dy_ptr + index, mask=inside).to(ARITHMETIC)
    dx = dy * _slope(x, TANH, dx_ptr.dtype.element_ty == tl.float32)
    tl.store(dx_ptr + index, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def gelu(x: Tensor, *, form: str) -> Tensor:
    """GELU of ``x``, as in ``kernels.gelu``. ``y`` is contiguous; an ``x`` that is not is copied first.

    It can be differentiated once.

    Raises:
        Unsupported: ``x`` is not on a GPU, and Triton's interpreter is off; it is of another type.
        ValueError: there is no such ``form``.

    """
    tanh = is_tanh(form)
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Differentiable.apply(x, form)
        return y
    require_gpu(x)
    require_floats(x)
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    grid = (triton.cdiv(x.numel(), BLOCK),)
    with on_device_of(x):
        _gelu[grid](x, y, x.numel(), TANH=tanh, ARITHMETIC=arithmetic, BLOCK=BLOCK, num_warps=4)
    return y


def _backward(x: Tensor, dy: Tensor, form: str) -> Tensor:
    """The gradient of ``x`` from that of ``y``."""
    x, dy = x.contiguous(), dy.contiguous()
    dx = torch.empty_like(x)
    if x.numel() == 0:
        return dx
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    block = BACKWARD_BYTES[x.element_size()] // x.element_size()
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
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor], dy: Tensor) -> tuple[Tensor, None]:
        return _backward(saved[0], dy, ctx.form), None
