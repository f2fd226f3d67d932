"""Checks whether Triton kernels can run on a tensor."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .unsupported import INTERPRETED_BFLOAT16, TRITON_NEEDS_GPU, Unsupported

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
LANES = tl.constexpr(16)  # elements of an access of 16 bytes, at most; see ``programs_for``


def triton_version() -> tuple[int, ...]:
    """Return the major and the minor number of Triton's version."""
    return tuple(map(int, triton.__version__.split(".")[:2]))


def interpreted() -> bool:
    """Return whether Triton's interpreter is on, so that kernels run as Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


OLD = triton_version() < (3, 4)  # its interpreter cannot multiply a tile that a function returns


def require_gpu(x: Tensor) -> None:
    """Check that a Triton kernel can be launched on ``x``: on a GPU, or on any device under Triton's interpreter.

    Raises:
        Unsupported: ``x`` is not on a GPU and the interpreter is off, or the interpreter rounds this dtype differently.

    """
    if x.is_cuda:
        return
    if not interpreted():
        raise Unsupported(TRITON_NEEDS_GPU)
    if x.dtype == torch.bfloat16:
        raise Unsupported(INTERPRETED_BFLOAT16)


def require_floats(x: Tensor) -> None:
    """Check that the dtype of ``x`` is in ``FLOATS``. For integers, a kernel would truncate its float32 results.

    Raises:
        Unsupported: the dtype is another one.

    """
    if x.dtype not in FLOATS:
        raise Unsupported(f"this kernel takes {', '.join(map(str, FLOATS))}; convert from {x.dtype}")


def arithmetic(x: Tensor) -> tl.dtype:
    """Return the type in which kernels compute with ``x``: float64 stays, all others become float32."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def require_products() -> None:
    """Check that Triton is new enough for kernels that multiply tiles.

    Raises:
        Unsupported: Triton is older than 3.4.

    """
    if OLD:
        raise Unsupported(f"this kernel needs Triton 3.4, part of torch 2.8; this is Triton {triton.__version__}")


def multiprocessors(x: Tensor) -> int:
    """Return the number of multiprocessors of the GPU of ``x``; 1 under Triton's interpreter."""
    if not x.is_cuda:
        return 1
    return _count_of(x.device) if torch.compiler.is_compiling() else _known_count_of(x.device)


def _count_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


_known_count_of = cache(_count_of)  # to ask takes 1 us; torch.compile would warn about the cache


def l2_bytes(x: Tensor) -> int:
    """Return the bytes of the L2 cache of the GPU of ``x``; 0 under Triton's interpreter."""
    return int(torch.cuda.get_device_properties(x.device).L2_cache_size) if x.is_cuda else 0


def shared_bytes(x: Tensor) -> int:
    """Return the bytes of shared memory that a program may have on the GPU of ``x``; those of sm_90 elsewhere."""
    if not x.is_cuda:
        return 227 * 1024
    properties: Any = torch.cuda.get_device_properties(x.device)  # its type stubs lack this one
    return int(properties.shared_memory_per_block_optin)


def programs_for(count: int, block: int) -> int:
    """Return the number of programs for ``count`` elements. Each program handles ``block`` elements.

    If ``count`` is not a multiple of ``LANES``, one more program handles the remaining elements: the mask
    ``index < count`` would prevent accesses of 16 bytes in all programs.
    """
    lanes: int = LANES.value
    whole, rest = divmod(count, lanes)
    return -(-lanes * whole // block) + (rest > 0)


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Return a context manager that makes the GPU of ``x`` the current one, since Triton launches on the current GPU.

    ``torch.cuda.device_of`` does the same, but torch.compile cannot trace it inside an autograd function.
    """
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device.index)
