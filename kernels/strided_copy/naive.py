"""Strided copy by a copy from the view ``x[::stride]`` into new memory: there is no simpler operation."""

from __future__ import annotations

from torch import Tensor


def strided_copy(x: Tensor, *, stride: int) -> Tensor:
    """Copy every ``stride``-th number of ``x``; shapes and dtypes as in ``kernels.strided_copy``."""
    view = x[::stride]
    return x.new_empty(view.shape).copy_(view)
