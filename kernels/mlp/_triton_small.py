"""Products of an MLP in float32 that are too small to fill a GPU, where the number of kernels decides.

Forward has one kernel for each layer: the product, the bias, the activation and its derivative. Backward has one kernel
for each layer as well. The gradients of the layer's weight and bias and of the z of the layer below need the same dz,
and do not depend on each other, so their tiles are programs of one grid. Tiles are small, since there are more
multiprocessors than large tiles.

Backward multiplies in float32. In forward, both operands lie along the sum, and float32 instructions would read the
rows of a tile of w from the same banks of shared memory, one after the other. Tensor cores read them in another order.
So forward splits each operand into three bfloat16 numbers, which hold all of its bits, and adds six products of those.
The sums of DEPTH terms each are added in float32 arithmetic. The error is near that of float32: in 16 layers of 512,
emulated on a CPU, 0.11 of the workload's tolerance, where float32 has 0.07 and three products of tf32 have 0.97.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..tensor_cores import promote
from ..triton_device import interpreted, multiprocessors, triton_version
from ..triton_launch import each_time, planned, repeatable
from ._triton_products import activation_and_slope

MOST_ROWS, WIDEST = 512, 256  # beyond, ``kernels.matmul`` is faster, although it needs more kernels
# Rows and columns of a tile. Large tiles load less for a product, but keep fewer multiprocessors busy.
SMALL, LARGE = 16, 32
FORWARD_ROWS, BACKWARD_ROWS = 16, 8  # of a tile for each warp; with less in forward, two warps compute the same
DEPTH, STAGES = 32, 3
# Of forward. Triton's interpreter lacks the six products, and older versions of Triton may lack them.
PRECISION = "bf16x6" if triton_version() >= (3, 6) and not interpreted() else "ieee"


@triton.jit
def _get(matrix, i, j, rows, cols, row_stride, col_stride):
    """Load the elements [i, j], for index vectors i and j, with zeros beyond the edges."""
    places = i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * col_stride
    return tl.load(matrix + places, mask=(i < rows)[:, None] & (j < cols)[None, :], other=0)


@triton.jit
def _put(matrix, tile, i, j, rows, cols):
    places = i.to(tl.int64)[:, None] * cols + j[None, :]
    tl.store(matrix + places, tile, mask=(i < rows)[:, None] & (j < cols)[None, :])


@triton.jit
def _forward(
    h,
    w,
    bias,
    y,
    slope,
    rows,
    dim,
    one,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    z = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, dim, DEPTH):
        k = start + tl.arange(0, DEPTH)
        left, right = _get(h, i, k, rows, dim, dim, 1), _get(w, j, k, dim, dim, dim, 1)
        z = promote(z, tl.dot(left, right.T, input_precision=PRECISION), one)
    z += tl.load(bias + j, mask=j < dim, other=0)[None, :]
    value, derivative = activation_and_slope(z, RELU, FINE=True)
    _put(y, value, i, j, rows, dim)
    if KEEP:
        _put(slope, derivative, i, j, rows, dim)


@triton.jit
def _through(dy, slope, RELU: tl.constexpr):
    return tl.where(slope <= 0, 0.0, dy) if RELU else dy * slope


@triton.jit
def _get_dz(dz, slope, i, j, rows, dim, row_stride, col_stride, TOP: tl.constexpr, RELU: tl.constexpr):
    """Load dz. For the last layer, compute it from dy and the slope."""
    tile = _get(dz, i, j, rows, dim, row_stride, col_stride)
    if TOP:
        tile = _through(tile, _get(slope, i, j, rows, dim, dim, 1), RELU)
    return tile


@triton.jit
def _backward(
    dz,
    slope,
    w,
    h,
    slope_below,
    below,
    dw,
    db,
    rows,
    dim,
    row_stride,
    col_stride,
    TOP: tl.constexpr,
    BELOW: tl.constexpr,
    THROUGH: tl.constexpr,
    RELU: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    across = tl.cdiv(dim, TILE)
    of_weight = across * across
    tile = tl.program_id(0)
    acc = tl.zeros((TILE, TILE), tl.float32)
    if tile < of_weight:
        i, j = tile // across * TILE + tl.arange(0, TILE), tile % across * TILE + tl.arange(0, TILE)
        sums = tl.zeros((TILE,), tl.float32)
        for start in range(0, rows, DEPTH):
            k = start + tl.arange(0, DEPTH)
            left = _get_dz(dz, slope, k, i, rows, dim, row_stride, col_stride, TOP, RELU)
            acc = tl.dot(left.T, _get(h, k, j, rows, dim, dim, 1), acc, input_precision="ieee")
            sums += tl.sum(left, axis=0)
        _put(dw, acc, i, j, dim, dim)
        if tile % across == 0:
            tl.store(db + i, sums, mask=i < dim)
    elif BELOW:
        tile -= of_weight
        i, j = tile // across * TILE + tl.arange(0, TILE), tile % across * TILE + tl.arange(0, TILE)
        for start in range(0, dim, DEPTH):
            k = start + tl.arange(0, DEPTH)
            left = _get_dz(dz, slope, i, k, rows, dim, row_stride, col_stride, TOP, RELU)
            acc = tl.dot(left, _get(w, k, j, dim, dim, dim, 1), acc, input_precision="ieee")
        if THROUGH:
            acc = _through(acc, _get(slope_below, i, j, rows, dim, dim, 1), RELU)
        _put(below, acc, i, j, rows, dim)


def small(x: Tensor) -> bool:
    """Return whether layers with input ``x`` [rows, dim] use the functions of this file."""
    return x.dtype == torch.float32 and x.shape[0] <= MOST_ROWS and x.shape[1] <= WIDEST


def _tiles(rows: int, dim: int) -> int:
    return -(-rows // LARGE) * -(-dim // LARGE)


@planned
def linear(h: Tensor, w: Tensor, b: Tensor, relu: bool, y: Tensor, slope: Tensor | None) -> None:
    """Write a layer, activation(h w^T + b), into ``y``, and the derivative into ``slope`` unless it is None.

    Args:
        h: input [rows, dim], float32. All tensors are contiguous.
        w: weight [dim, dim].
        b: bias [dim].
        relu: the activation is relu, else gelu.
        y: output [rows, dim].
        slope: derivative of the activation [rows, dim], or None.

    """
    rows, dim = h.shape
    if not y.numel():
        return
    tile = LARGE if _tiles(rows, dim) >= multiprocessors(h) else SMALL
    repeatable(_forward)[triton.cdiv(rows, tile), triton.cdiv(dim, tile)](
        h,
        w,
        b,
        y,
        y if slope is None else slope,
        rows,
        dim,
        1.0,
        RELU=relu,
        KEEP=slope is not None,
        TILE=tile,
        DEPTH=DEPTH,
        PRECISION=PRECISION,
        num_warps=tile // FORWARD_ROWS,
        num_stages=STAGES,
    )


@planned
def gradients(
    dz: Tensor, slope: Tensor | None, w: Tensor, h: Tensor, slope_below: Tensor | None, relu: bool, *, below: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the gradients of a layer.

    Args:
        dz: gradient of z [rows, dim], at any strides; with ``slope``, the gradient of y = activation(z) instead. All
            other tensors are contiguous.
        slope: derivative of the activation [rows, dim], or None. For relu, any tensor that is 0 where it is 0.
        w: weight [dim, dim].
        h: input of the layer [rows, dim], float32.
        slope_below: derivative of the activation of the layer below, or None.
        relu: the activation is relu, else gelu.
        below: compute the third result.

    Returns:
        The gradients of w and b, and that of h; with ``slope_below``, that of the z of the layer below instead of h.

    """
    rows, dim = h.shape
    dw = each_time(torch.empty_like, w)
    db = each_time(torch.empty, dim, dtype=w.dtype, device=w.device)
    of_h = each_time(torch.empty_like, h) if below else None
    enough = _tiles(dim, dim) + (_tiles(rows, dim) if below else 0) >= multiprocessors(h)
    tile = LARGE if enough else SMALL
    across = triton.cdiv(dim, tile)
    tiles = across * (across + (triton.cdiv(rows, tile) if below else 0))
    if tiles:
        repeatable(_backward)[(tiles,)](
            dz,
            dz if slope is None else slope,
            w,
            h,
            h if slope_below is None else slope_below,
            dw if of_h is None else of_h,
            dw,
            db,
            rows,
            dim,
            dz.stride(0),
            dz.stride(1),
            TOP=slope is not None,
            BELOW=below,
            THROUGH=slope_below is not None,
            RELU=relu,
            TILE=tile,
            DEPTH=DEPTH,
            num_warps=tile // BACKWARD_ROWS,
            num_stages=STAGES,
        )
    return dw, db, of_h
