"""Matrix product as PyTorch has it: cuBLAS on an NVIDIA GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ..unsupported import Unsupported

MULTIPLE = 16  # elements, of which cuBLAS wants whole numbers in float8: 16 bytes of alignment
FLOAT8 = (8, 9)  # the compute capability from which on tensor cores multiply it


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``. Whether float32 uses tf32 is PyTorch's global setting.

    float8 is summed with ``use_fast_accum``, the faster of two ways. Factors that are not stored along k, in rows that
    begin at multiples of 16 bytes, are copied, for cuBLAS takes no others.

    Raises:
        Unsupported: float8, and a size, GPU or version of torch that its product is not there for.

    """
    if a.dtype != torch.float8_e4m3fn:
        return a @ b
    if a.is_cuda and (a.shape[1] % MULTIPLE or b.shape[1] % MULTIPLE):
        raise Unsupported(f"cuBLAS multiplies float8 where k and n are multiples of {MULTIPLE}; give such a size")
    if a.is_cuda and torch.cuda.get_device_capability(a.device) < FLOAT8:
        raise Unsupported("cuBLAS multiplies float8 on GPUs of compute capability 8.9 and newer; use one of those")
    scale_a = _one(a) if scale_a is None else scale_a
    scale_b = _one(a) if scale_b is None else scale_b
    if a.is_cuda:
        a, b = _along_k(a), _along_k(b.t()).t()
    try:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=a.is_cuda)
    except NotImplementedError as error:
        raise Unsupported("this torch has no float8 product on a CPU; use a newer one, or a GPU") from error


def _along_k(x: Tensor) -> Tensor:
    """``x`` [rows, k] as it lies, if cuBLAS can read it so; else a copy."""
    aligned = torch.compiler.is_compiling() or x.storage_offset() % MULTIPLE == 0  # which it has no graph for
    in_place = aligned and x.stride(1) == 1 and x.stride(0) >= x.shape[1] and x.stride(0) % MULTIPLE == 0
    return x if in_place else x.clone(memory_format=torch.contiguous_format)


_ones: dict[torch.device, Tensor] = {}


def _one(like: Tensor) -> Tensor:
    """The scale 1 on the GPU of ``like``: kept, for to fill one is a kernel, which would be timed with the product.

    One that is kept has been filled, for any stream and graph, and outlives them. Where that cannot be, as in a graph
    that is being captured or traced, it is filled anew at each call.
    """
    if torch.compiler.is_compiling() or type(like) is not Tensor:  # a tensor without data, say
        return torch.ones((), device=like.device)
    if (kept := _ones.get(like.device)) is not None:
        return kept
    one = torch.ones((), device=like.device)
    if like.is_cuda:
        with torch.cuda.device(like.device):
            if torch.cuda.is_current_stream_capturing():
                return one
            torch.cuda.current_stream().synchronize()
    return _ones.setdefault(like.device, one)  # of two threads' the first, which a graph may know already
