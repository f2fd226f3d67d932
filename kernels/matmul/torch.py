"""Matrix product of PyTorch: cuBLAS on an NVIDIA GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported

MULTIPLE = 16  # in float8, cuBLAS needs sizes that are multiples of this: rows aligned to 16 bytes
FLOAT8 = (8, 9)  # the lowest compute capability whose tensor cores multiply float8


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Compute a @ b; shapes and dtypes as in ``kernels.matmul``. PyTorch's global setting decides if float32 uses tf32.

    float8 is summed with ``use_fast_accum``, the faster of two modes. cuBLAS needs float8 operands whose rows run along
    k and begin at multiples of 16 bytes; others are copied.

    Raises:
        Unsupported: float8 at a size, or on a GPU or version of torch, that has no such product.

    """
    if a.dtype != torch.float8_e4m3fn:
        return a @ b
    if a.is_cuda and (a.shape[1] % MULTIPLE or b.shape[1] % MULTIPLE):
        raise Unsupported(f"cuBLAS multiplies float8 where k and n are multiples of {MULTIPLE}; give such a size")
    if a.is_cuda and torch.cuda.get_device_capability(a.device) < FLOAT8:
        raise Unsupported("cuBLAS multiplies float8 on GPUs of compute capability 8.9 and newer; use one of those")
    scale_a = scale_of_one(a) if scale_a is None else scale_a
    scale_b = scale_of_one(a) if scale_b is None else scale_b
    if a.is_cuda or torch.compiler.is_compiling():  # eager, a CPU takes any strides
        a, b = rows_along_k(a), rows_along_k(b.t()).t()
    try:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda)
    except NotImplementedError as error:
        raise Unsupported("this torch has no float8 product on a CPU; use a newer one, or a GPU") from error


def rows_along_k(x: Tensor) -> Tensor:
    """Return ``x`` [rows, k] itself if cuBLAS can read it as it is stored; else a contiguous copy."""
    aligned = torch.compiler.is_compiling() or x.storage_offset() % MULTIPLE == 0  # torch.compile cannot trace offsets
    in_place = aligned and x.stride(1) == 1 and x.stride(0) >= x.shape[1] and x.stride(0) % MULTIPLE == 0
    return x if in_place else x.clone(memory_format=torch.contiguous_format)


_ones: dict[torch.device, Tensor] = {}


def scale_of_one(like: Tensor) -> Tensor:
    """Return the scale 1, float32 [], on the device of ``like``.

    It is cached, since filling a tensor launches a kernel that would be timed with the product. A cached tensor is
    already filled, so any stream and graph may use it. While a graph is captured or traced, a new tensor is filled at
    each call.
    """
    if torch.compiler.is_compiling() or type(like) is not Tensor:  # such as a fake tensor, without data
        return torch.ones((), device=like.device)
    if (kept := _ones.get(like.device)) is not None:
        return kept
    one = torch.ones((), device=like.device)
    if like.is_cuda:
        with torch.cuda.device(like.device):
            if torch.cuda.is_current_stream_capturing():
                return one
            torch.cuda.current_stream().synchronize()
    return _ones.setdefault(like.device, one)  # if two threads race, keep the first: a graph may use it already
