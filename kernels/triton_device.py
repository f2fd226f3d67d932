"""Where Triton kernels can run."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from kernels import Unsupported


def require_gpu(x: Tensor) -> None:
    """Passes if a Triton kernel can be launched on ``x``: on a GPU, or anywhere under Triton's interpreter.

    Raises:
        Unsupported: ``x`` is elsewhere, or the interpreter would not compute as a GPU does.

    """
    if x.is_cuda:
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("Triton kernels need an NVIDIA GPU; set TRITON_INTERPRET=1 to check this one on a CPU")
    if x.dtype == torch.bfloat16:
        raise Unsupported("Triton's interpreter cuts bfloat16 off where a GPU rounds; check float16, or on a GPU")


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """The GPU of ``x`` is the current one within, for that is where Triton launches, wherever its tensors may be.

    Not ``torch.cuda.device_of``, which torch.compile does not trace in what has a backward of its own.
    """
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device.index)
