"""GELU in Triton. Each element is read once and written once, so the speed is that of memory.

The tanh form is computed as x * sigmoid(2 u) = x / (1 + exp(-2 u)), since 1 + tanh(u) = 2 sigmoid(2 u). Nothing
cancels, and if exp overflows the result is x / inf = 0. The usual (e - 1) / (e + 1) with e = exp(2 u) is NaN from
x = 10.07 on in float32.

At the speed of memory there is time for about 25 instructions for a 16-bit element. That is too few for a library's
erf, or for a quotient as in Abramowitz & Stegun 7.1.26. So Phi(x) is computed from one exp2: log2 Phi(-|x|) is nearly a
parabola, and a polynomial in |x|, fitted by the Remez algorithm, approximates it, also in the left tail, where 1 + erf
cancels.

Backward reads x and dy and writes dx. The erf form uses one exp2 for Phi and one for the density. The tanh form
computes the sigmoid and its complement from one exp.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..triton_device import LANES, programs_for, require_floats, require_gpu
from ..triton_launch import each_time, planned, repeatable
from ._form import is_tanh

LARGEST = 1024  # elements of a program of the forward: with 4 warps, one 128-bit access of a thread in 16 bits
FEW = 2**18  # elements of x; with fewer, a program has 1 KiB, so that more programs share the arithmetic

MINUS_2_SQRT_2_OVER_PI = tl.constexpr(-1.5957691216057308)
SQRT_HALF = tl.constexpr(0.7071067811865476)

# Bytes of each tensor for a program of the backward, by bytes of an element. With 4 warps, a thread makes two 128-bit
# accesses in 16 bits, and one in other dtypes.
BACKWARD_BYTES = {2: 4096, 4: 2048, 8: 2048}

MINUS_HALF_LOG2_E = tl.constexpr(-0.7213475204444817)
MINUS_2_SQRT_2_OVER_PI_LOG2_E = tl.constexpr(-2.302208198144325)
SQRT_1_OVER_2_PI = tl.constexpr(0.3989422804014327)
LOG2_SQRT_1_OVER_2_PI = tl.constexpr(-1.3257480647361592)

# Beyond this |x|, y' differs from 0 or 1 by less than 2e-20; and e = exp(80.6) still fits into float32.
SATURATED = tl.constexpr(9.7)


@triton.jit
def _gelu(x_ptr, y_ptr, count, TANH: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    # int64, because int32 offsets overflow at 2**31 elements.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    whole = count // LANES * LANES
    if first < whole:
        _gelu_of(x_ptr, y_ptr, index, index < whole, TANH, ARITHMETIC)
    else:  # see ``programs_for``
        last = whole + tl.arange(0, LANES)
        _gelu_of(x_ptr, y_ptr, last, last < count, TANH, ARITHMETIC)


@triton.jit
def _gelu_of(x_ptr, y_ptr, index, inside, TANH: tl.constexpr, ARITHMETIC: tl.constexpr):
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
    """Return Phi(x) in float32, with an error of 5e-8 if ``FINE``, else 3e-7, in addition to float32 rounding.

    The relative error in the left tail is 4e-4 (``FINE``) and 3e-3 at x = -8, and a tenth of that at x = -4.
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
    """Return Phi(x) and the derivative of x Phi(x), for finite ``x``. ``FINE`` is as for ``normal_cdf``."""
    if x.dtype == tl.float64:
        p, density = 0.5 + 0.5 * tl.erf(x * SQRT_HALF), tl.exp(-0.5 * x * x) * SQRT_1_OVER_2_PI
    else:
        p, density = normal_cdf(x, FINE), tl.exp2(x * x * MINUS_HALF_LOG2_E + LOG2_SQRT_1_OVER_2_PI)
    return p, p + x * density


@triton.jit
def _slope(x, TANH: tl.constexpr, FINE: tl.constexpr):
    """Return y'(x). It is 0 at -inf, 1 at +inf, and NaN at NaN."""
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
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    whole = count // LANES * LANES
    if first < whole:
        _backward_of(x_ptr, dy_ptr, dx_ptr, index, index < whole, TANH, ARITHMETIC)
    else:
        last = whole + tl.arange(0, LANES)
        _backward_of(x_ptr, dy_ptr, dx_ptr, last, last < count, TANH, ARITHMETIC)


@triton.jit
def _backward_of(x_ptr, dy_ptr, dx_ptr, index, inside, TANH: tl.constexpr, ARITHMETIC: tl.constexpr):
    x = tl.load(x_ptr + index, mask=inside).to(ARITHMETIC)
    dy = tl.load(dy_ptr + index, mask=inside).to(ARITHMETIC)
    dx = dy * _slope(x, TANH, dx_ptr.dtype.element_ty == tl.float32)
    tl.store(dx_ptr + index, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def gelu(x: Tensor, *, form: str, BLOCK: int | None = None, num_warps: int = 4) -> Tensor:
    """Compute GELU of each element of ``x``; shapes and dtypes as in ``kernels.gelu``. ``y`` is contiguous.

    An ``x`` that is not contiguous is copied first. The result can be differentiated once.

    Args:
        x: a tensor.
        form: "erf" or "tanh".
        BLOCK: elements of a program of the forward, a power of 2. None: 1024, or those of 1 KiB if ``x`` is small.
        num_warps: warps of a program of the forward, a power of 2.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``form`` is neither "erf" nor "tanh".

    """
    tanh = is_tanh(form)
    if x.requires_grad and torch.is_grad_enabled():
        return apply(_Differentiable, x, (tanh, BLOCK, num_warps))
    return _forward(x, tanh, BLOCK, num_warps)


@planned
def _forward(x: Tensor, tanh: bool, BLOCK: int | None, num_warps: int) -> Tensor:
    require_gpu(x)
    require_floats(x)
    x = x.contiguous()
    y = each_time(torch.empty_like, x)
    if x.numel() == 0:
        return y
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    block = BLOCK or (LARGEST if x.numel() >= FEW else LARGEST // x.element_size())
    grid = (programs_for(x.numel(), block),)
    repeatable(_gelu)[grid](x, y, x.numel(), TANH=tanh, ARITHMETIC=arithmetic, BLOCK=block, num_warps=num_warps)
    return y


@planned
def _backward(x: Tensor, dy: Tensor, tanh: bool) -> Tensor:
    """Return the gradient of ``x``, given the gradient ``dy`` of ``y``."""
    x, dy = x.contiguous(), dy.contiguous()
    dx = each_time(torch.empty_like, x)
    if x.numel() == 0:
        return dx
    arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
    block = BACKWARD_BYTES[x.element_size()] // x.element_size()
    grid = (programs_for(x.numel(), block),)
    kernel = repeatable(_gelu_backward)
    kernel[grid](x, dy, dx, x.numel(), TANH=tanh, ARITHMETIC=arithmetic, BLOCK=block, num_warps=4)
    return dx


class _Differentiable(torch.autograd.Function):
    """``gelu`` for autograd, which saves x only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, asked: tuple[bool, int | None, int]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.tanh = asked[0]
        return _forward(x, *asked)

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor], dy: Tensor) -> tuple[Tensor, None]:
        return _backward(saved[0], dy, ctx.tanh), None
