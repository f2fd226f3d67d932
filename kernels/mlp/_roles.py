"""When an MLP's products are those of ``_triton_roles``, and how these are launched."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.tensor_cores import has_roles, processors
from kernels.triton_device import on_device_of

try:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from kernels.mlp import _triton_roles as products
except ImportError:  # a Triton before 3.6
    products = None  # type: ignore[assignment]

ENABLED = False  # its results are right on an H200, in bfloat16 and float16; its speed is yet to be measured
TYPES = (torch.bfloat16, torch.float16)
BAND = 64  # rows, whose column sums are kept
WARPS = 4


def fits(h: Tensor, w: Tensor) -> bool:
    """Whether layers of this input and these weights are made of whole tiles, enough of them for the GPU."""
    if not ENABLED or products is None or h.dtype not in TYPES or not has_roles(h):
        return False
    (rows, dim), tile_rows, tile_cols = h.shape, products.BLOCK_M.value, products.BLOCK_N.value
    deep = min(rows, dim) >= products.PARTS.value * products.BLOCK_K.value
    whole = rows % tile_rows == 0 and dim % tile_cols == 0
    aligned = h.data_ptr() % 16 == 0 and w.data_ptr() % 16 == 0
    tiles = min(rows, dim) // tile_rows * (dim // tile_cols)
    return whole and deep and aligned and tiles >= processors(h)


def linear(h: Tensor, w: Tensor, b: Tensor, relu: bool, y: Tensor, slope: Tensor | None) -> None:
    """As in ``_triton_products``."""
    _launch(h, w, y, y if slope is None else slope, b, y, relu, forward=True, keep=slope is not None)


def chained(dz: Tensor, w: Tensor, slope: Tensor, relu: bool, out: Tensor, sums: Tensor) -> None:
    """As in ``_triton_products``, for bands of ``BAND`` rows."""
    _launch(dz, w, out, out, slope, sums, relu)


def of_weight(dz: Tensor, h: Tensor) -> Tensor:
    """The gradient of a layer's weight, dz^T h."""
    dw = torch.empty(dz.shape[1], h.shape[1], dtype=h.dtype, device=h.device)
    _launch(dz, h, dw, dw, dw, dw, False, weight=True)
    return dw


def _launch(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    slope: Tensor,
    given: Tensor,
    sums: Tensor,
    relu: bool,
    *,
    forward: bool = False,
    weight: bool = False,
    keep: bool = False,
) -> None:
    rows, cols = out.shape
    tile_rows, tile_cols, step = products.BLOCK_M.value, products.BLOCK_N.value, products.BLOCK_K.value
    half, part = products.HALF_M.value, products.COLS.value
    tiles = rows // tile_rows * (cols // tile_cols)
    with on_device_of(out):
        products.product[(min(tiles, processors(out)),)](
            _described(a, *((step, half) if weight else (half, step))),
            _described(b, *((tile_cols, step) if forward else (step, tile_cols))),
            _described(out, half, part),
            _described(slope, half, part),
            given,
            sums,
            rows,
            cols,
            a.shape[0] if weight else a.shape[1],
            FORWARD=forward,
            WEIGHT=weight,
            RELU=relu,
            KEEP=keep,
            num_warps=WARPS,
            maxnreg=products.AT_FIRST,
        )


def _described(matrix: Tensor, rows: int, cols: int) -> TensorDescriptor:
    layout = _layout(matrix.dtype, rows, cols)
    return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], [rows, cols], layout)


@cache
def _layout(dtype: torch.dtype, rows: int, cols: int) -> Any:  # of shared memory
    return gl.NVMMASharedLayout.get_default_for([rows, cols], gl.bfloat16 if dtype == torch.bfloat16 else gl.float16)
