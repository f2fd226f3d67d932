"""2-norm in Triton, from ``kernels.reductions``. Backward computes dx = x dy / y from x, y and dy, and 0 where y is 0.

Squares are not scaled, as in PyTorch: they overflow in float32 from |x| = 1.8e19 on.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..reductions import reduce
from ..triton_launch import each_time, planned, repeatable

BLOCK = 1024  # elements of a program of the backward


@triton.jit
def _norm_backward(
    x_ptr,
    y_ptr,
    dy_ptr,
    dx_ptr,
    cols,
    count,
    DIM: tl.constexpr,
    NARROW: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # DIM is -1 for a norm of all elements. A division of int64 for each element would take longer than its memory.
    lane = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    inside = start + lane < count
    row = start // cols
    col = start - row * cols + lane
    # A block has elements of several rows if NARROW, else of two at most.
    down = col.to(tl.int32) // cols if NARROW else (col >= cols).to(tl.int32)
    x = tl.load(x_ptr + start + lane, mask=inside).to(ARITHMETIC)
    if DIM == -1:
        y = tl.load(y_ptr).to(ARITHMETIC)
        dy = tl.load(dy_ptr).to(ARITHMETIC)
    else:
        out = col - down * cols if DIM == 0 else row + down
        y = tl.load(y_ptr + out, mask=inside, other=1.0).to(ARITHMETIC)
        dy = tl.load(dy_ptr + out, mask=inside, other=0.0).to(ARITHMETIC)
    dx = x * tl.where(y == 0, 0.0, dy / tl.where(y == 0, 1.0, y))
    tl.store(dx_ptr + start + lane, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def norm(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the 2-norm of ``x`` along ``dim``; shapes and dtypes as in ``kernels.norm``.

    The result can be differentiated once.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``x`` is no matrix, or ``dim`` is not allowed.

    """
    if x.requires_grad and torch.is_grad_enabled():
        return apply(_Differentiable, x, dim)
    return reduce("norm", x, dim)


@planned
def _backward(x: Tensor, y: Tensor, dy: Tensor, dim: str | int) -> Tensor:
    """Return the gradient of ``x``, given ``y`` and its gradient ``dy``."""
    x, dy = x.contiguous(), dy.contiguous()
    dx = each_time(torch.empty_like, x)
    if x.numel():
        arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
        grid = (triton.cdiv(x.numel(), BLOCK),)
        along = -1 if dim == "all" else int(dim)
        repeatable(_norm_backward)[grid](
            x,
            y,
            dy,
            dx,
            x.shape[1],
            x.numel(),
            DIM=along,
            NARROW=x.shape[1] < BLOCK,
            ARITHMETIC=arithmetic,
            BLOCK=BLOCK,
        )
    return dx


class _Differentiable(torch.autograd.Function):
    """``norm`` for autograd, which saves x and y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: str | int) -> Tensor:
        y = reduce("norm", x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor, Tensor], dy: Tensor) -> tuple[Tensor, None]:
        return _backward(*saved, dy, ctx.dim), None
