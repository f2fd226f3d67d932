"""Matrix product in Gluon, Triton's language below the tile: on Hopper, with warps that load and warps that multiply.

What Triton's compiler does not do by itself: y is stored while the next tile of it is multiplied. Where there are few
steps to a tile of y, storing it is a tenth of the time. See ``_triton_roles.py``.

Products that are too small for a tile a multiprocessor, or that descriptors cannot read where they lie, are those of
``triton.py``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from kernels import Unsupported
from kernels.matmul import triton as plain
from kernels.matmul._operands import Operand, in_place, strides_of

try:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from kernels.matmul._triton_roles import AT_FIRST, PARTS, matmul_roles
except ImportError as error:
    raise Unsupported("this Triton has no Gluon for Hopper; install Triton 3.6 or newer") from error

HOPPER = 9  # of compute capability
BLOCK_M, BLOCK_N, K_BYTES = 128, 256, 128
STAGES, WARPS, GROUP_M = 4, 4, 8
FEWEST_STEPS = 8  # of a tile, more than it is stored in parts and than the ring has stages
TYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}


def matmul(a: Tensor, b: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
    """Product a @ b, as in ``kernels.matmul``, at any sizes, strides and alignment.

    float8 is summed in the tensor cores' own accumulators, as cuBLAS does with ``use_fast_accum=True``.

    Raises:
        Unsupported: not on a Hopper GPU, or a type that its tensor cores do not multiply.
        ValueError: the shapes or types do not make a product.

    """
    if not a.is_cuda or torch.cuda.get_device_capability(a.device)[0] != HOPPER:
        raise Unsupported("Gluon's kernel is for Hopper GPUs, and no interpreter runs it; use impl=triton")
    if a.dtype not in TYPES:
        raise Unsupported(f"Gluon's kernel multiplies 8 and 16 bits, not {a.dtype}; use impl=triton")
    plain.check(a, b)
    along_k = a.dtype.itemsize == 1  # float8 is multiplied only if its tiles lie so in shared memory
    left, right = in_place(a, along_k), in_place(b.t(), along_k)
    y = torch.empty(a.shape[0], b.shape[1], dtype=torch.bfloat16 if along_k else a.dtype, device=a.device)
    global _plain
    _plain = left is None or right is None or not worth_roles(y, a.shape[1] * a.itemsize)
    if left is None or right is None or _plain:
        return plain.matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    run(left, right, y, a.shape[1], scale_a, scale_b)
    return y


def chosen() -> str:
    """How the last product was computed, in words."""
    tile = f"{BLOCK_M}x{BLOCK_N}, {K_BYTES} bytes of k a step"
    return plain.chosen() if _plain else f"roles {tile}, {STAGES} stages, groups of {GROUP_M}"


_plain = False  # the last product was one for triton.py


def worth_roles(y: Tensor, k_bytes: int) -> bool:
    """Whether ``y`` can be stored by descriptors, and keeps a multiprocessor busy for a tile or more."""
    tiles = triton.cdiv(y.shape[0], BLOCK_M) * triton.cdiv(y.shape[1], BLOCK_N)
    return k_bytes > (FEWEST_STEPS - 1) * K_BYTES and tiles >= _multiprocessors(y.device) and strides_of(y) is not None


def run(
    a: Operand, b: Operand, y: Tensor, k: int, scale_a: Tensor | None = None, scale_b: Tensor | None = None
) -> None:
    """Write the product of two operands [rows, k] into ``y``."""
    tiles = triton.cdiv(y.shape[0], BLOCK_M) * triton.cdiv(y.shape[1], BLOCK_N)
    block_k = K_BYTES // a.base.itemsize
    with torch.cuda.device_of(y):  # Triton launches on the current device, wherever the tensors may be
        matmul_roles[(min(tiles, _multiprocessors(y.device)),)](
            _tiles(a, BLOCK_M // 2, block_k),
            _tiles(b, BLOCK_N, block_k),
            _described(y, list(y.shape), [y.stride(0), 1], [BLOCK_M // 2, BLOCK_N // PARTS.value]),
            scale_a,
            scale_b,
            *y.shape,
            k,
            A_ALONG_K=a.along_k,
            B_ALONG_K=b.along_k,
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_N,
            BLOCK_K=block_k,
            GROUP_M=GROUP_M,
            STAGES=STAGES,
            num_warps=WARPS,
            maxnreg=AT_FIRST,
        )


def _tiles(x: Operand, block_rows: int, block_k: int) -> TensorDescriptor:
    block = [block_rows, block_k] if x.along_k else [block_k, block_rows]
    return _described(x.base, x.shape, x.strides, block)


def _described(x: Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(x, shape, strides, block, _layout(x.dtype, *block))


@cache
def _layout(dtype: torch.dtype, rows: int, cols: int) -> Any:  # of shared memory
    return gl.NVMMASharedLayout.get_default_for([rows, cols], TYPES[dtype])


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
