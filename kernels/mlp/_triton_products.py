"""Products of an MLP in Triton, with bias and activation, or its derivative, as their epilogue.

On Hopper a program computes tiles one after the other, loaded and stored by the tensor memory accelerator. Tensor cores
wait during the epilogue of a tile, so the activation uses few instructions. A few large tiles would leave most
multiprocessors idle, so the tile is chosen by an estimate of the time. The accelerator needs rows that begin at
multiples of 16 bytes. If they do not, weights and input are copied once into rows that do, and all matrices between the
layers have such rows.

On other GPUs tiles are loaded by pointers; cuBLAS multiplies what has few tiles or unaligned rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor

from ..gelu.triton import normal_cdf_and_slope
from ..padding import ALIGNED, padded
from ..tensor_cores import TensorDescriptor, has_descriptors
from ..triton_device import multiprocessors
from ..triton_launch import planned, repeatable

# The estimate of a time, as in kernels.matmul
CORE_BYTES = 4096 * 1.56e3  # bytes of a, for each column of b, that a multiprocessor multiplies in 1 us
FINISHED = 128 * 128  # elements that a multiprocessor finishes in 1 us; a lone program multiplies nothing then
CUBLAS_SIDES = range(64, 257, 32)  # of its tiles, beside 128: more of them fill the multiprocessors than of ours
PASSED_BYTES = 1.0e6  # of a matrix that a kernel of its own takes through the activation in 1 us: two more are written
# cuBLAS is faster in two cases that the estimate does not see. With up to FEW_ROWS rows of LONG_ROWS or more elements,
# all programs read the same few lines of the L2 cache at the same time. With a number of rows in TWO_BANDS, one more
# kernel adds the sums of two bands of tiles.
FEW_ROWS, LONG_ROWS, TWO_BANDS = 24, 1536, range(65, 129)
LAUNCH_US = 2.0  # time of that kernel more


@dataclass(frozen=True)
class Tiling:
    """The tiles of a product: ``m`` x ``n``, with ``k`` terms in a step. Columns are summed over ``m`` rows."""

    m: int
    n: int
    k: int
    warps: int
    stages: int  # tiles of operands in flight
    resident: int  # programs on a multiprocessor, each with a queue of tiles; 0: a program for each tile
    copy_engine: bool  # use descriptors (the tensor memory accelerator)
    halves: bool = True  # finish a tile in halves, since the store needs shared memory beside the operands
    rate: float = 1.0  # share of the tensor cores' rate that the loop reaches; small tiles load more for each product
    group: int = 8  # rows of tiles that run at the same time, so that their operands stay in the cache


HOPPER = Tiling(m=128, n=256, k=64, warps=8, stages=4, resident=1, copy_engine=True)
SMALLER = (
    Tiling(m=128, n=128, k=64, warps=4, stages=3, resident=2, copy_engine=True, rate=0.92),
    Tiling(m=128, n=128, k=64, warps=8, stages=6, resident=1, copy_engine=True, rate=0.85),
    Tiling(m=64, n=128, k=128, warps=4, stages=4, resident=1, copy_engine=True, halves=False, rate=0.75),
    Tiling(m=64, n=64, k=128, warps=4, stages=6, resident=1, copy_engine=True, halves=False, rate=0.55),
    # First the one with more tiles in flight: where programs are few, memory is the limit.
    Tiling(m=64, n=32, k=128, warps=4, stages=8, resident=1, copy_engine=True, halves=False, rate=0.3),
    Tiling(m=64, n=32, k=128, warps=4, stages=4, resident=2, copy_engine=True, halves=False, rate=0.3),
)
POINTERS = Tiling(m=128, n=128, k=32, warps=8, stages=4, resident=0, copy_engine=False)  # with 4 warps, registers spill


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
def _places(row, col, rows, cols, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    i, j = (row + tl.arange(0, ROWS))[:, None], (col + tl.arange(0, COLS))[None, :]
    return i.to(tl.int64) * stride + j, (i < rows) & (j < cols)


@triton.jit
def _get(matrix, row, col, rows, cols, stride, ROWS: tl.constexpr, COLS: tl.constexpr, COPY_ENGINE: tl.constexpr):
    """Load a tile of a row-major matrix, with zeros beyond its edges."""
    if COPY_ENGINE:
        tile = matrix.load([row, col])
    else:
        places, inside = _places(row, col, rows, cols, stride, ROWS, COLS)
        tile = tl.load(matrix + places, mask=inside, other=0)
    return tile


@triton.jit
def _put(matrix, tile, row, col, rows, cols, stride, COPY_ENGINE: tl.constexpr):
    if COPY_ENGINE:
        matrix.store([row, col], tile.to(matrix.dtype))
    else:
        places, inside = _places(row, col, rows, cols, stride, tile.shape[0], tile.shape[1])
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
    out_stride,
    slope_stride,
    FORWARD: tl.constexpr,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    COPY_ENGINE: tl.constexpr,
    STORES: tl.constexpr,
):
    """Compute the epilogue of a tile and store it."""
    height: tl.constexpr = z.shape[0]
    width: tl.constexpr = z.shape[1]
    j = col + tl.arange(0, width)
    if FORWARD:
        z += tl.load(bias + j, mask=j < cols, other=0).to(tl.float32)[None, :]
        y, d = activation_and_slope(z, RELU, FINE=False)
        if KEEP:
            _put(slope, d, row, col, rows, cols, slope_stride, COPY_ENGINE)
        _put(out, y, row, col, rows, cols, out_stride, STORES)
    else:
        d = _get(slope, row, col, rows, cols, slope_stride, height, width, COPY_ENGINE)
        dz = tl.where(d <= 0, 0.0, z) if RELU else z * d.to(tl.float32)
        _put(out, dz, row, col, rows, cols, out_stride, STORES)
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
    a_stride,
    b_stride,
    out_stride,
    slope_stride,
    FORWARD: tl.constexpr,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    COPY_ENGINE: tl.constexpr,  # a, b and slope are descriptors
    STORES: tl.constexpr,  # out is a descriptor
):
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(cols, BLOCK_N)
    wave = GROUP * tiles_n
    # Flattened, so that the operands of the next tile load during the epilogue. In the backward this gains nothing. A
    # store by pointers would need shared memory of its own then.
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FORWARD and STORES):
        first = tile // wave * GROUP
        together = min(tiles_m - first, GROUP)
        row = (first + tile % wave % together) * BLOCK_M
        col = tile % wave // together * BLOCK_N
        z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(depth, BLOCK_K)):
            k = step * BLOCK_K
            left = _get(a, row, k, rows, depth, a_stride, BLOCK_M, BLOCK_K, COPY_ENGINE)
            if FORWARD:
                right = _get(b, col, k, cols, depth, b_stride, BLOCK_N, BLOCK_K, COPY_ENGINE).T
            else:
                right = _get(b, k, col, depth, cols, b_stride, BLOCK_K, BLOCK_N, COPY_ENGINE)
            z = tl.dot(left, right, z)
        if HALVES:
            one, two = tl.split(z.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1))
            _finish(
                one, out, slope, bias, sums, row, col, rows, cols, out_stride, slope_stride,
                FORWARD, RELU, KEEP, COPY_ENGINE, STORES,
            )  # fmt: skip
            _finish(
                two, out, slope, bias, sums, row, col + BLOCK_N // 2, rows, cols, out_stride, slope_stride,
                FORWARD, RELU, KEEP, COPY_ENGINE, STORES,
            )  # fmt: skip
        else:
            _finish(
                z, out, slope, bias, sums, row, col, rows, cols, out_stride, slope_stride,
                FORWARD, RELU, KEEP, COPY_ENGINE, STORES,
            )  # fmt: skip


@planned
def linear(h: Tensor, w: Tensor, b: Tensor, relu: bool, y: Tensor, slope: Tensor | None, tiling: Tiling) -> None:
    """Write a layer, activation(h w^T + b), into ``y``, and the derivative into ``slope`` unless it is None.

    Args:
        h: input [rows, depth], float16 or bfloat16. Rows of all matrices are dense; if tiles are copied by descriptors,
            all but ``y`` are as from ``aligned``.
        w: weight [cols, depth].
        b: bias [cols], contiguous.
        relu: the activation is relu, else gelu.
        y: output [rows, cols].
        slope: derivative of the activation [rows, cols], or None.
        tiling: a result of ``tiling_for``.

    """
    right = (tiling.n, tiling.k)
    _launch(tiling, h, w, right, y, y if slope is None else slope, b, y, relu, forward=True, keep=slope is not None)


@planned
def chained(dz: Tensor, w: Tensor, slope: Tensor, relu: bool, out: Tensor, sums: Tensor, tiling: Tiling) -> None:
    """Compute the backward of a product and of the activation below it: out = (dz w) * slope.

    Args:
        dz: gradient of the layer's z [rows, depth], float16 or bfloat16. Matrices are as for ``linear``.
        w: weight of the layer [depth, cols].
        slope: derivative of the activation below [rows, cols]; for relu, any tensor that is 0 where it is 0.
        relu: the activation is relu, else gelu.
        out: gradient of the z of the layer below [rows, cols].
        sums: sums of the columns of ``out`` over each band of ``tiling.m`` rows [bands, cols], float32.
        tiling: a result of ``tiling_for``.

    """
    _launch(tiling, dz, w, (tiling.k, tiling.n), out, slope, out, sums, relu, forward=False, keep=True)


def tiling_for(x: Tensor) -> Tiling | None:
    """Return the fastest tiling for layers with input ``x`` [rows, dim], 16 bits; None if cuBLAS is faster."""
    rows, dim = x.shape
    return _fastest(rows, dim, multiprocessors(x), has_descriptors(x))


@lru_cache(maxsize=1024)
def _fastest(rows: int, dim: int, processors: int, descriptors: bool) -> Tiling | None:
    def tiles(tiling: Tiling) -> int:
        return -(-rows // tiling.m) * -(-dim // tiling.n)

    def microseconds(tiling: Tiling) -> float:
        # Programs that share a multiprocessor share its tensor cores, and each finishes while the other multiplies.
        shared = min(tiling.resident, max(1, -(-tiles(tiling) // processors)))
        area = tiling.m * tiling.n
        multiplying = shared * area * dim * 2 / (CORE_BYTES * tiling.rate)
        return -(-tiles(tiling) // (shared * processors)) * (multiplying + (area / FINISHED if shared == 1 else 0.0))

    if descriptors:
        best, least = HOPPER, microseconds(HOPPER)
        for tiling in SMALLER:  # torch.compile cannot trace min() with a key
            if (time := microseconds(tiling)) < least:
                best, least = tiling, time
        aligned_rows = dim * 2 % ALIGNED == 0  # cuBLAS is several times slower without
        slow = (rows <= FEW_ROWS and dim >= LONG_ROWS) or rows in TWO_BANDS
        return None if aligned_rows and (slow or _by_cublas(rows, dim, processors) < least) else best
    return POINTERS if dim * 2 % ALIGNED == 0 and 2 * tiles(POINTERS) >= processors else None


def _by_cublas(rows: int, dim: int, processors: int) -> float:
    """Return the estimated time of a layer in us whose product is by cuBLAS and whose activation is another kernel."""
    least = float("inf")
    for side in CUBLAS_SIDES:
        for m, n in ((128, side), (side, 128)):
            waves = -(-(-(-rows // m) * -(-dim // n)) // processors)
            least = min(least, waves * m * n * dim * 2 / CORE_BYTES)
    return least + rows * dim * 2 / PASSED_BYTES + LAUNCH_US


def aligned(x: Tensor) -> Tensor:
    """Return the contiguous ``x`` [rows, cols], or a padded copy if a descriptor cannot read it."""
    return x if _described(x) or not x.numel() else padded(x)[0]


def _described(x: Tensor) -> bool:
    return x.data_ptr() % ALIGNED == 0 and _stride(x) * x.element_size() % ALIGNED == 0


def _stride(x: Tensor) -> int:
    """Return the row stride of ``x``. A single row may have any, so its width is returned, rounded up to 16 bytes."""
    unit = ALIGNED // x.element_size()
    return x.stride(0) if x.shape[0] > 1 else triton.cdiv(x.shape[1], unit) * unit


def _descriptor(x: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x.as_strided(x.shape, (_stride(x), 1)), [*block])


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
    tiles = triton.cdiv(rows, tiling.m) * triton.cdiv(cols, tiling.n)
    if not tiles:
        return
    matrices, stores = [a, b, out, slope], False
    if tiling.copy_engine:
        stores = _described(out)
        block = (tiling.m, tiling.n // 2 if tiling.halves else tiling.n)
        written = _descriptor(out, block) if stores else out
        kept = _descriptor(slope, block) if keep else written  # else not used
        matrices = [_descriptor(a, (tiling.m, tiling.k)), _descriptor(b, right), written, kept]
    programs = min(tiles, tiling.resident * multiprocessors(out)) if tiling.resident else tiles
    repeatable(_product)[(programs,)](
        *matrices,
        bias,
        sums,
        rows,
        cols,
        a.shape[1],
        *(_stride(x) for x in (a, b, out, slope)),
        FORWARD=forward,
        RELU=relu,
        KEEP=keep,
        BLOCK_M=tiling.m,
        BLOCK_N=tiling.n,
        BLOCK_K=tiling.k,
        GROUP=tiling.group,
        HALVES=tiling.halves,
        COPY_ENGINE=tiling.copy_engine,
        STORES=stores,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
