"""Products in Triton with what an MLP does before and after them as their epilogue.

On Hopper a program has a processor, and tiles of 128 x 256 one after the other; what it does to one of them when it is
complete keeps the tensor cores waiting, so the activation is made of few instructions.

Elsewhere, and where the copy engine cannot address the operands, these come through pointers.
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

BAND = 128  # rows of a tile, always: column sums are kept a band


@dataclass(frozen=True)
class Tiling:
    """How a product is cut up, in tiles of ``BAND`` x ``n``."""

    n: int
    k: int
    warps: int
    stages: int  # tiles of operands in flight
    resident: int  # programs that share a processor, each with a queue of tiles; 0: a program a tile
    copy_engine: bool
    group: int = 8  # rows of tiles that run at the same time, for their operands to be in the cache


HOPPER = Tiling(n=256, k=64, warps=8, stages=4, resident=1, copy_engine=True)
POINTERS = Tiling(n=128, k=32, warps=8, stages=4, resident=0, copy_engine=False)  # 4 warps would spill


@triton.jit
def activation_and_slope(z, RELU: tl.constexpr, FINE: tl.constexpr):
    """The activation of ``z``, and its derivative there; of relu, what is 0 where the derivative is."""
    if RELU:
        y = tl.where(z <= 0, 0.0, z)  # and NaN stays NaN
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
    """A tile of a row-major matrix; beyond its edges, zeros."""
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
    """The epilogue of a tile."""
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
    # Flattened, the operands of the next tile are on their way while this one is finished. Backward that gains nothing.
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
        # By halves, because what is stored lies in shared memory meanwhile, beside the operands of the next tile.
        one, two = tl.split(z.reshape(BLOCK_M, 2, half).permute(0, 2, 1))
        _finish(one, out, slope, bias, sums, row, col, rows, cols, FORWARD, RELU, KEEP, COPY_ENGINE)
        _finish(two, out, slope, bias, sums, row, col + half, rows, cols, FORWARD, RELU, KEEP, COPY_ENGINE)


def linear(h: Tensor, w: Tensor, b: Tensor, relu: bool, y: Tensor, slope: Tensor | None, tiling: Tiling) -> None:
    """A layer, y = activation(h w^T + b), and the derivative into ``slope``, if that is wanted. All without gaps."""
    right = (tiling.n, tiling.k)
    _launch(tiling, h, w, right, y, y if slope is None else slope, b, y, relu, forward=True, keep=slope is not None)


def chained(dz: Tensor, w: Tensor, slope: Tensor, relu: bool, out: Tensor, sums: Tensor, tiling: Tiling) -> None:
    """Backward through a product and the activation below it, out = (dz w) * slope; all without gaps.

    Also the sum of each column over each band of rows, into ``sums`` [bands, columns].
    Of relu, ``slope`` is anything that is 0 where the derivative is.
    """
    _launch(tiling, dz, w, (tiling.k, tiling.n), out, slope, out, sums, relu, forward=False, keep=True)


def tiling_for(*operands: Tensor) -> Tiling:
    """The fastest that ``operands`` allow, which lie without gaps where they are."""
    (where, *_) = {tensor.device for tensor in operands}
    if TensorDescriptor is None or where.type != "cuda" or torch.cuda.get_device_capability(where)[0] != 9:
        return POINTERS  # newer GPUs too: there are some with less than half of the shared memory that HOPPER takes
    # The copy engine wants whole rows, and the first of them, at multiples of 16 bytes.
    addresses = [address for x in operands for address in (x.data_ptr(), x.shape[-1] * x.element_size())]
    return POINTERS if any(address % 16 for address in addresses) else HOPPER


def bands(rows: int) -> int:
    """Number of bands of ``BAND`` rows; the last one may have fewer."""
    return -(-rows // BAND)


def _measured(x: Tensor) -> Tensor:
    """``x``, whose rows follow each other, with the stride that says so: of a single one it may be anything else."""
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
