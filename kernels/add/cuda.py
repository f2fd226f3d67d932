"""Sum in CUDA C++, from ``add.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cuda_build import TYPES, kernel, require_type, source
from ..launch import each_time, planned
from ._alike import require_alike

ACCESS = 16  # bytes that a thread reads at once


@planned
def add(a: Tensor, b: Tensor, *, variant: str = "default", build: str = "nvrtc", threads: int = 256) -> Tensor:
    """Compute ``a + b``; shapes and dtypes as in ``kernels.add``. ``y`` is contiguous.

    Args:
        a: a tensor; it is copied first if it is not contiguous.
        b: a tensor like ``a``.
        variant: "default" is the only one.
        build: "nvrtc" or "extension", as in ``kernels.cuda_build``.
        threads: threads of a block, 1 to 1024.

    Raises:
        Unsupported: ``a`` is not on an NVIDIA GPU, or of another dtype, or the builder lacks something.
        BuildFailed: the source does not compile.
        ValueError: ``a`` and ``b`` differ in shape, dtype or device.

    """
    code = source(__file__, variant)
    require_alike(a, b)
    require_type("add", a, "convert a and b from")
    a, b = a.contiguous(), b.contiguous()
    y = each_time(torch.empty_like, a)
    aligned = "true" if a.data_ptr() % ACCESS == b.data_ptr() % ACCESS == 0 else "false"
    launch = kernel(code, f"add_kernel<{TYPES[a.dtype]}, {aligned}, {threads}>", build, a.device)
    if a.numel():
        blocks = -(-a.numel() // (threads * ACCESS // a.element_size()))
        launch(blocks, threads, a, b, y, a.numel())
    return y
