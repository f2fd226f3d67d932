"""Products of an MLP in Triton, with bias and activation, or its derivative, as their epilogue.

On Hopper one program runs on each multiprocessor and computes tiles of 128 x 256 one after the other. Tensor cores wait
during the epilogue of a tile, so the activation uses few instructions.

On other GPUs, and if the tensor memory accelerator cannot address the operands, tiles are loaded by pointers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gelu.triton import normal_cdf_and_slope
from ..tensor_cores import TensorDescriptor, processors
from ..triton_device import on_device_of

BAND = 128  # rows of every tile; column sums are computed for each band of so many rows


@dataclass(frozen=True)
class Tiling:
    """The tiles of a product: ``BAND`` x ``n``, with ``k`` terms in a step."""

    n: int
    k: int
    warps: int
    stages: int  # tiles of operands in flight
    resident: int  # programs on a multiprocessor, each with a queue of tiles; 0: a program for each tile
    copy_engine: bool  # use descriptors (the tensor memory accelerator)
    group: int = 8  # rows of tiles that run at the same time, so that their operands stay in the cache


HOPPER = Tiling(n=256, k=64, warps=8, stages=4, resident=1, copy_engine=True)
POINTERS = Tiling(n=128, k=32, warps=8, stages=4, resident=0, copy_engine=False)  # with 4 warps, registers spill


@triton.jit
def activation_and_slope(z, RELU: tl.constexpr, FINE: tl.constexpr):
    """Return the activation y of ``z`` and its derivative; for relu y twice, which is 0 where the derivative is."""
    if RELU:
        y = tl.where(z <= 0, 0.0, z)  # NaN stays NaN
        slope = y
    else:
        p, slope = normal_cdf_and_slope(z, FINE)
        y = z * p
    return y, slope


@triton.jit
def _places(row, col, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    i, j = (row + tl.arange(0, ROWS))[:, None], (col + tl.arange(0, COLS))[None, :]
    return i.to(tl.int64) * cols + j, (i < rows) & (j < cols)


@triton.jit
def _get(matrix, row, col, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, COPY_ENGINE: tl.constexpr):
    """Load a tile of a row-major matrix, with zeros beyond its edges."""
    if COPY_ENGINE:
        tile = matrix.load([row, col])
    else:
        places, inside = _places(row, col, rows, cols, ROWS, COLS)
        tile = tl.load(matrix + places, mask=inside, other=0)
    return tile


@triton.jit
def _put(matrix, tile, row, col, rows, cols, COPY_ENGINE: tl.constexpr):
    if COPY_ENGINE:
        matrix.store([row, col], tile.to(matrix.dtype))
    else:
        places, inside = _places(row, col, rows, cols, tile.shape[0], tile.shape[1])
        tl.store(matrix + places, tile.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def _finish(
    z,
    out,
    slope,
    bias,
    sums,
    row,
    col,
    rows,
    cols,
    FORWARD: tl.constexpr,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    COPY_ENGINE: tl.constexpr,
):
    """Compute the epilogue of a tile and store it."""
    height: tl.constexpr = z.shape[0]
    width: tl.constexpr = z.shape[1]
    j = col + tl.arange(0, width)
    if FORWARD:
        z += tl.load(bias + j, mask=j < cols, other=0).to(tl.float32)[None, :]
        y, d = activation_and_slope(z, RELU, FINE=False)
        if KEEP:
            _put(slope, d, row, col, rows, cols, COPY_ENGINE)
        _put(out, y, row, col, rows, cols, COPY_ENGINE)
    else:
        d = _get(slope, row, col, rows, cols, height, width, COPY_ENGINE)
        dz = tl.where(d <= 0, 0.0, z) if RELU else z * d.to(tl.float32)
        _put(out, dz, row, col, rows, cols, COPY_ENGINE)
        if KEEP:
            band = (row // height).to(tl.int64)
            tl.store(sums + band * cols + j, tl.sum(dz, axis=0), mask=j < cols)


@triton.jit
def _product(
    a,
    b,
    out,
    slope,
    bias,
    sums,
    rows,
    cols,
    depth,
    FORWARD: tl.constexpr,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    COPY_ENGINE: tl.constexpr,
):
    half: tl.constexpr = BLOCK_N // 2
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(cols, BLOCK_N)
    wave = GROUP * tiles_n
    # Flattened, so that the operands of the next tile load during the epilogue. In the backward this gains nothing.
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FORWARD and COPY_ENGINE):
        first = tile // wave * GROUP
        together = min(tiles_m - first, GROUP)
        row = (first + tile % wave % together) * BLOCK_M
        col = tile % wave // together * BLOCK_N
        z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(depth, BLOCK_K)):
            k = step * BLOCK_K
            left = _get(a, row, k, rows, depth, BLOCK_M, BLOCK_K, COPY_ENGINE)
            if FORWARD:
                right = _get(b, col, k, cols, depth, BLOCK_N, BLOCK_K, COPY_ENGINE).T
            else:
                right = _get(b, k, col, depth, cols, BLOCK_K, BLOCK_N, COPY_ENGINE)
            z = tl.dot(left, right, z)
        # In halves, since the store needs shared memory beside the operands of the next tile.
        one, two = tl.split(z.reshape(BLOCK_M, 2, half).permute(0, 2, 1))
        _finish(one, out, slope, bias, sums, row, col, rows, cols, FORWARD, RELU, KEEP, COPY_ENGINE)
        _finish(two, out, slope, bias, sums, row, col + half, rows, cols, FORWARD, RELU, KEEP, COPY_ENGINE)


def linear(h: Tensor, w: Tensor, b: Tensor, relu: bool, y: Tensor, slope: Tensor | None, tiling: Tiling) -> None:
    """Write a layer, activation(h w^T + b), into ``y``, and the derivative into ``slope`` unless it is None.

    Args:
        h: input [rows, depth], float16 or bfloat16. All tensors are contiguous.
        w: weight [cols, depth].
        b: bias [cols].
        relu: the activation is relu, else gelu.
        y: output [rows, cols].
        slope: derivative of the activation [rows, cols], or None.
        tiling: ``HOPPER`` or ``POINTERS``.

    """
    right = (tiling.n, tiling.k)
    _launch(tiling, h, w, right, y, y if slope is None else slope, b, y, relu, forward=True, keep=slope is not None)


def chained(dz: Tensor, w: Tensor, slope: Tensor, relu: bool, out: Tensor, sums: Tensor, tiling: Tiling) -> None:
    """Compute the backward of a product and of the activation below it: out = (dz w) * slope.

    Args:
        dz: gradient of the layer's z [rows, depth], float16 or bfloat16. All tensors are contiguous.
        w: weight of the layer [depth, cols].
        slope: derivative of the activation below [rows, cols]; for relu, any tensor that is 0 where it is 0.
        relu: the activation is relu, else gelu.
        out: gradient of the z of the layer below [rows, cols].
        sums: sums of the columns of ``out`` over each band of rows [bands, cols], float32.
        tiling: ``HOPPER`` or ``POINTERS``.

    """
    _launch(tiling, dz, w, (tiling.k, tiling.n), out, slope, out, sums, relu, forward=False, keep=True)


def tiling_for(*operands: Tensor) -> Tiling:
    """Return the fastest tiling for contiguous ``operands``."""
    (where, *_) = {tensor.device for tensor in operands}
    if TensorDescriptor is None or where.type != "cuda" or torch.cuda.get_device_capability(where)[0] != 9:
        return POINTERS  # on newer GPUs too: some have less than half of the shared memory that HOPPER needs
    # A descriptor needs a base address and rows that are multiples of 16 bytes.
    addresses = [address for x in operands for address in (x.data_ptr(), x.shape[-1] * x.element_size())]
    return POINTERS if any(address % 16 for address in addresses) else HOPPER


def bands(rows: int) -> int:
    """Return the number of bands of ``BAND`` rows; the last one may have fewer."""
    return -(-rows // BAND)


def _measured(x: Tensor) -> Tensor:
    """Return the contiguous ``x`` with a row stride of its width. A single row may have any stride before."""
    return x if x.stride(0) == x.shape[1] else x.view(-1).view(x.shape)


def _launch(
    tiling: Tiling,
    a: Tensor,
    b: Tensor,
    right: tuple[int, int],
    out: Tensor,
    slope: Tensor,
    bias: Tensor,
    sums: Tensor,
    relu: bool,
    *,
    forward: bool,
    keep: bool,
) -> None:
    rows, cols = out.shape
    tiles = bands(rows) * triton.cdiv(cols, tiling.n)
    if not tiles:
        return
    matrices = [a, b, out, slope]
    if tiling.copy_engine:
        half = (BAND, tiling.n // 2)
        blocks = (BAND, tiling.k), right, half, half
        matrices = [
            TensorDescriptor.from_tensor(_measured(x), [*block]) for x, block in zip(matrices, blocks, strict=True)
        ]
    programs = min(tiles, tiling.resident * processors(out)) if tiling.resident else tiles
    with on_device_of(out):
        _product[(programs,)](
            *matrices,
            bias,
            sums,
            rows,
            cols,
            a.shape[1],
            FORWARD=forward,
            RELU=relu,
            KEEP=keep,
            BLOCK_M=BAND,
            BLOCK_N=tiling.n,
            BLOCK_K=tiling.k,
            GROUP=tiling.group,
            COPY_ENGINE=tiling.copy_engine,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
        )
