"""Launch Numba kernels on torch tensors: on a GPU, or on a CPU under Numba's simulator (NUMBA_ENABLE_CUDASIM=1)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from .unsupported import Unsupported, needs

with needs("numba-cuda", extra="numba"):
    from numba import config, cuda

DTYPES = (torch.float16, torch.float32, torch.float64)
THREADS = 256  # threads of a block, one for each element


def require_numba(x: Tensor) -> None:
    """Check that a Numba kernel can be launched on ``x``.

    Raises:
        Unsupported: ``x`` is not on a GPU and the simulator is off, has another dtype, or requires a gradient.

    """
    if not x.is_cuda and not config.ENABLE_CUDASIM:
        raise Unsupported(
            "Numba kernels need an NVIDIA GPU; to check this one on a CPU: debug=interpret, "
            "or without the runner NUMBA_ENABLE_CUDASIM=1"
        )
    if x.dtype == torch.bfloat16:
        raise Unsupported("Numba reads tensors of torch by an interface that has no bfloat16; use float16 or float32")
    if x.dtype not in DTYPES:
        raise Unsupported(f"this kernel takes {', '.join(map(str, DTYPES))}; convert from {x.dtype}")
    if x.requires_grad and torch.is_grad_enabled():
        raise Unsupported("this kernel has no backward; give workload.pass=fwd")


def launch(kernel: Any, *arguments: Any) -> None:
    """Launch ``kernel`` with a thread for each element of the last tensor of ``arguments``, on torch's current stream.

    Tensors are contiguous; the kernel sees them flat, [count].

    Raises:
        Unsupported: this version of numba-cuda asks NumPy for a function that the installed one has no more.

    """
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    blocks = -(-tensors[-1].numel() // THREADS)
    if blocks == 0:
        return
    flat = [_array(one) if isinstance(one, Tensor) else one for one in arguments]
    if not tensors[-1].is_cuda:
        kernel[blocks, THREADS](*flat)
        return
    try:
        kernel[blocks, THREADS, _stream(torch.cuda.current_stream().cuda_stream)](*flat)
    except AttributeError as error:  # numba-cuda before it knew NumPy 2.5: no 'row_stack'
        if "module 'numpy' has no attribute" not in str(error):
            raise
        needed = "install an older NumPy, or a newer numba-cuda"
        raise Unsupported(
            f"numba-cuda {version('numba-cuda')} does not run with NumPy {version('numpy')}: {needed}"
        ) from error


def _array(x: Tensor) -> Any:
    flat = x.detach().view(-1)
    return cuda.as_cuda_array(flat, sync=False) if x.is_cuda else flat.numpy()


@cache
def _stream(pointer: int) -> Any:
    return cuda.external_stream(pointer)
