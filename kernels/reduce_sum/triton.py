"""Sum in Triton, from ``kernels.reductions``. Backward repeats dy, as a view."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..differentiable import apply
from ..reductions import reduce


def reduce_sum(x: Tensor, *, dim: str | int) -> Tensor:
    """Compute the sum of ``x`` along ``dim``; shapes and dtypes as in ``kernels.reduce_sum``.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``x`` is no matrix, or ``dim`` is not allowed.

    """
    if x.requires_grad and torch.is_grad_enabled():
        return apply(_Differentiable, x, dim)
    return reduce("sum", x, dim)


class _Differentiable(torch.autograd.Function):
    """``reduce_sum`` for autograd, which saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: str | int) -> Tensor:
        ctx.shape, ctx.dim = x.shape, dim
        return reduce("sum", x, dim)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return (dy if ctx.dim == "all" else dy.unsqueeze(ctx.dim)).expand(ctx.shape), None
