"""Strided copy in Triton. The memory is read in sectors of 32 bytes.

So from a stride of 8 on each number of 4 bytes costs a sector of its own. With a smaller stride the threads of a warp
share sectors, if neighbors read neighbors: a thread takes one number of a tile then, and several tiles in turn. If it
took four numbers in a row, to store 16 bytes at once, each of its loads would be 4 strides from the next thread's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import require_gpu
from ..triton_launch import each_time, planned, repeatable
from ..unsupported import Unsupported

BLOCK = 1024  # elements of a program
WARPS = 4  # of a program


@triton.jit
def _strided_copy(x_ptr, y_ptr, x_stride, elements, TILE: tl.constexpr, TILES: tl.constexpr):
    for tile in tl.static_range(TILES):
        # int64, because int32 offsets overflow at 2**31 elements.
        index = (tl.program_id(0).to(tl.int64) * TILES + tile) * TILE + tl.arange(0, TILE)
        inside = index < elements
        tl.store(y_ptr + index, tl.load(x_ptr + index * x_stride, mask=inside), mask=inside)


@planned
def strided_copy(x: Tensor, *, stride: int) -> Tensor:
    """Copy every ``stride``-th number of ``x``; shapes and dtypes as in ``kernels.strided_copy``.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or is complex.
        ValueError: ``x`` is not a vector, or ``stride`` is below 1.

    """
    if x.dim() != 1 or stride < 1:
        raise ValueError(
            f"x has {x.dim()} dimensions and the stride is {stride}: give a vector, and a stride of at least 1"
        )
    require_gpu(x)
    if x.is_complex():
        raise Unsupported("Triton has no complex numbers; copy torch.view_as_real(x)")
    elements = triton.cdiv(x.numel(), stride)
    y = each_time(torch.empty, (elements,), dtype=x.dtype, device=x.device)
    if elements:
        step = x.stride(0) * stride
        tile = BLOCK if step == 1 else 32 * WARPS
        repeatable(_strided_copy)[(triton.cdiv(elements, BLOCK),)](
            x, y, step, elements, TILE=tile, TILES=BLOCK // tile, num_warps=WARPS
        )
    return y
