"""Launch the kernel of ``_triton_roles.py``, whose warps are specialized."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..stream_memory import counters
from ..triton_device import multiprocessors
from ..triton_launch import each_time, repeatable
from ._configurations import Configuration, share_tiles
from ._operands import Operand, store_unit, strides_of
from ._triton_roles import AT_FIRST, FLAGS, matmul_roles

TYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
ENGINE, THREADS = 64, 32  # columns that the copy engine stores at a time, and that threads store


def by_roles(
    how: Configuration, a: Operand, b: Operand, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    """Write the product of ``a`` [m, k] and ``b`` [n, k] into the contiguous ``y`` [m, n], as ``how`` says.

    ``scale_a`` and ``scale_b`` are float32 [] tensors, or None.
    """
    (m, n), k = y.shape, a.shape[1 if a.along_k else 0]
    stored = strides_of(y)
    tiles, blocks = triton.cdiv(m, how.block_m) * triton.cdiv(n, how.block_n), triton.cdiv(k, how.block_k)
    programs, depth, each, others = min(tiles, multiprocessors(y)), blocks, 0, 0
    if how.shared:
        programs = multiprocessors(y)
        depth, each, _ = share_tiles(tiles % programs, blocks, programs)
        others = tiles % programs * (triton.cdiv(blocks, depth) - 1)  # parts of sums, without those of part 0
    elements = others * how.block_m * how.block_n
    sums = each_time(torch.empty, elements, dtype=torch.float32, device=y.device) if others else None
    # Threads take longer to store a part than tensor cores take for a step, so they store smaller parts in more steps.
    width = THREADS if not stored and depth >= how.block_n // THREADS else ENGINE
    repeatable(matmul_roles)[(programs,)](
        _tiles(a, how.block_m // 2, how.block_k),
        _tiles(b, how.block_n - how.rest, how.block_k),
        _tiles(b, how.rest, how.block_k) if how.rest else None,
        _described(y, list(y.shape), stored, [how.block_m // 2, width]) if stored else None,
        y,
        sums,
        counters(y, FLAGS.value * others) if others else None,
        scale_a,
        scale_b,
        m,
        n,
        k,
        depth,
        each,
        A_ALONG_K=a.along_k,
        B_ALONG_K=b.along_k,
        BLOCK_M=how.block_m,
        BLOCK_N=how.block_n,
        BLOCK_K=how.block_k,
        GROUP_M=how.group_m,
        REST=how.rest,
        WIDTH=width,
        UNIT=min(4, store_unit(y)),
        STAGES=how.stages,
        num_warps=how.warps,
        maxnreg=AT_FIRST,
    )


def _tiles(x: Operand, block_rows: int, block_k: int) -> TensorDescriptor:
    block = [block_rows, block_k] if x.along_k else [block_k, block_rows]
    return _described(x.base, x.shape, x.strides, block)


def _described(x: Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(x, shape, strides, block, _layout(x.dtype, *block))


def _layout(dtype: torch.dtype, rows: int, cols: int) -> Any:  # a layout of shared memory
    return gl.NVMMASharedLayout.get_default_for([rows, cols], TYPES[dtype])
