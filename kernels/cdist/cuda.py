"""Pairwise distances in CUDA C++, from differences, which stay accurate where points are close."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, rows_are_aligned, source, with_dense_rows
from ..launch import each_time, planned
from ._points import require_points

THREADS = 256


@planned
def cdist(a: Tensor, b: Tensor, *, p: int, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Compute the distances between the rows of ``a`` and ``b``; shapes and dtypes as in ``kernels.cdist``.

    Args:
        a: points; they are copied first if their rows are not contiguous.
        b: points, likewise.
        p: the norm, 2.
        variant: "default" is the only one.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``a`` is not on an NVIDIA GPU, or of another dtype, or the builder lacks something.
        BuildFailed: the source does not compile.
        ValueError: ``a`` and ``b`` differ in dtype, device or number of coordinates, or ``p`` is not 2.

    """
    require_points(a, b, p)
    require_type("cdist", a, "convert a and b from")
    a, b = with_dense_rows(a), with_dense_rows(b)
    (n, d), m = a.shape, b.shape[0]
    y = each_time(torch.empty, n, m, dtype=a.dtype, device=a.device)
    aligned = "true" if rows_are_aligned(a, b, y) else "false"
    launch = kernel(source(__file__, variant), f"cdist_kernel<{TYPES[a.dtype]}, {aligned}>", build, a.device)
    if y.numel():
        rows, cols = (64, 32) if a.dtype == torch.float64 else (128, 64)
        grid = -(-n // rows) * -(-m // cols)
        launch(grid, THREADS, a, b, y, n, m, d, a.stride(0), b.stride(0))
    return y
