"""Where Triton kernels can run."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

from .unsupported import Unsupported

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (
    3,
    4,
)  # its interpreter multiplies no tile of a function's


def require_gpu(x: Tensor) -> None:
    """Passes if a Triton kernel can be launched on ``x``: on a GPU, or anywhere under Triton's interpreter.

    Raises:
        Unsupported: ``x`` is elsewhere, or the interpreter would not compute as a GPU does.

    """
    if x.is_cuda:
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported(
            "Triton kernels need an NVIDIA GPU; to check this one on a CPU: debug=interpret device=cpu, "
            "or without the runner TRITON_INTERPRET=1"
        )
    if x.dtype == torch.bfloat16:
        raise Unsupported("Triton's interpreter cuts bfloat16 off where a GPU rounds; check float16, or on a GPU")


def require_floats(x: Tensor) -> None:
    """Passes if ``x`` is of ``FLOATS``: a kernel that computes in float32 would cut its results off to integers.

    Raises:
        Unsupported: it is of another type.

    """
    if x.dtype not in FLOATS:
        raise Unsupported(f"this kernel is of {', '.join(map(str, FLOATS))}; convert from {x.dtype}")


def require_products() -> None:
    """Passes if this Triton is as new as the kernels that multiply tiles want it.

    Raises:
        Unsupported: it is older.

    """
    if OLD:
        raise Unsupported(f"this kernel needs Triton 3.4, which torch 2.8 brings; here is Triton {triton.__version__}")


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """The GPU of ``x`` is the current one within, for that is where Triton launches, wherever its tensors may be.

    Not ``torch.cuda.device_of``, which torch.compile does not trace in what has a backward of its own.
    """
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device.index)
