"""Square in CUDA C++, from ``square.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, source
from ..launch import each_time, planned

THREADS = 256  # threads of a block, as in square.cu
ACCESS = 16  # bytes that a thread reads at once


@planned
def square(a: Tensor, *, variant: str = "default", build: str = "nvrtc") -> Tensor:
    """Compute the square of each element of ``a``; shapes and dtypes as in ``kernels.square``. ``y`` is contiguous.

    Args:
        a: a tensor; it is copied first if it is not contiguous.
        variant: "default" is the only one.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.

    Raises:
        Unsupported: ``a`` is not on an NVIDIA GPU, or of another dtype, or the builder lacks something.
        BuildFailed: the source does not compile.

    """
    code = source(__file__, variant)
    require_type("square", a, "convert a from")
    a = a.contiguous()
    y = each_time(torch.empty_like, a)
    aligned = "true" if a.data_ptr() % ACCESS == 0 else "false"
    launch = kernel(code, f"square_kernel<{TYPES[a.dtype]}, {aligned}>", build, a.device)
    if a.numel():
        blocks = -(-a.numel() // (THREADS * ACCESS // a.element_size()))
        launch(blocks, THREADS, a, y, a.numel())
    return y
