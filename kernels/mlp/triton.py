"""MLP in Triton: each layer's product has the bias and the activation, or its derivative, as its epilogue.

Forward keeps y'(z) beside y = activation(z) of each layer's z = h w^T + b: both come of one exp, and backward has then
nothing left to evaluate. It is a chain of products, dz = (dz' w') * y'(z), each of which writes the column sums of its
tiles as well, for the gradient of the bias; and for each layer dw = dz^T h, which is left to cuBLAS.

On Hopper two programs share a processor, each with a tile of 128 x 128 and its own 96 KB of operands in flight: the
epilogue of one runs under the matrix instructions of the other. Elsewhere, and at sizes that the copy engine cannot
address, operands come through pointers. Products of float32 and float64 are cuBLAS's, since tensor cores do not take
them whole; what is between them is one kernel a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.gelu.triton import SQRT_1_OVER_2_PI, SQRT_HALF, erf_and_exp
from kernels.triton_device import require_gpu

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # of a Triton before 3.4
    TensorDescriptor = None

NARROW = (torch.float16, torch.bfloat16)
ROWS, COLS = 128, 64  # of a tile where a layer is not a product
ELEMENTS = 1024  # a program of the activation alone


@dataclass(frozen=True)
class Tiling:
    """How a product is cut up."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    resident: int  # programs a processor
    group: int = 8  # rows of tiles that run together, for what they share to be in the cache
    tma: bool = False  # operands by the copy engine
    flatten: bool = False


HOPPER = Tiling(m=128, n=128, k=64, warps=4, stages=3, resident=2, tma=True)
AMPERE = Tiling(m=128, n=128, k=32, warps=8, stages=4, resident=1)


@triton.jit
def _get(matrix, row, col, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, TMA: tl.constexpr):
    """The tile of a row-major matrix at (row, col): zeros beyond its edges."""
    if TMA:
        tile = matrix.load([row, col])
    else:
        i = (row + tl.arange(0, ROWS))[:, None]
        j = (col + tl.arange(0, COLS))[None, :]
        tile = tl.load(matrix + i.to(tl.int64) * cols + j, mask=(i < rows) & (j < cols), other=0)
    return tile


@triton.jit
def _put(matrix, tile, row, col, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        matrix.store([row, col], tile.to(matrix.dtype))
    else:
        i = (row + tl.arange(0, ROWS))[:, None]
        j = (col + tl.arange(0, COLS))[None, :]
        target = matrix + i.to(tl.int64) * cols + j
        tl.store(target, tile.to(matrix.dtype.element_ty), mask=(i < rows) & (j < cols))


@triton.jit
def _activation(z, RELU: tl.constexpr, FAST: tl.constexpr = False):
    """The activation of ``z``, and its derivative."""
    if RELU:
        y = tl.where(z > 0, z, 0.0)
        slope = tl.where(z > 0, 1.0, 0.0)
    elif FAST:
        square = tl.minimum(z * z, 36.0)
        tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z * (0.79750897 + square * (0.0370048326 + square * -0.000351410298))], dtype=tl.float32, is_pure=True, pack=1)
        p = 0.5 + 0.5 * tanh
        y = z * p
        slope = p + z * tl.exp2(z * z * -0.7213475204444817) * SQRT_1_OVER_2_PI
    else:
        if z.dtype == tl.float64:
            erf, e = tl.erf(z * SQRT_HALF), tl.exp(-0.5 * z * z)
        else:
            erf, e = erf_and_exp(z)
        p = 0.5 + 0.5 * erf
        y = z * p
        slope = p + z * e * SQRT_1_OVER_2_PI
    return y, slope


@triton.jit
def _finish(
    z, out, slope, bias, sums, row, col, M, N,
    MODE: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, SLOPE_TMA: tl.constexpr, FAST: tl.constexpr,
):
    """The epilogue of a tile at (row, col)."""
    j = col + tl.arange(0, BLOCK_N)
    if MODE == "forward":
        z += tl.load(bias + j, mask=j < N, other=0).to(tl.float32)[None, :]
        y, d = _activation(z, RELU, FAST)
        if KEEP:
            _put(slope, d, row, col, M, N, BLOCK_M, BLOCK_N, SLOPE_TMA)
        _put(out, y, row, col, M, N, BLOCK_M, BLOCK_N, TMA)
    elif MODE == "weight":
        _put(out, z, row, col, M, N, BLOCK_M, BLOCK_N, TMA)
    else:
        d = _get(slope, row, col, M, N, BLOCK_M, BLOCK_N, SLOPE_TMA)
        z = tl.where(d > 0, z, 0.0) if RELU else z * d.to(tl.float32)
        _put(out, z, row, col, M, N, BLOCK_M, BLOCK_N, TMA)
        if KEEP:
            tl.store(sums + (row // BLOCK_M).to(tl.int64) * N + j, tl.sum(z, axis=0), mask=j < N)


@triton.jit
def _product(
    a, b, out, slope, bias, sums, M, N, K,
    MODE: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, TMA: tl.constexpr, SLOPE_TMA: tl.constexpr,
    FLATTEN: tl.constexpr, FAST: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    width = GROUP * tiles_n
    HALF: tl.constexpr = BLOCK_N // 2
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=FLATTEN):
        first = tile // width * GROUP
        together = min(tiles_m - first, GROUP)
        row = (first + tile % width % together) * BLOCK_M
        col = tile % width // together * BLOCK_N
        z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            if MODE == "weight":
                x = _get(a, k, row, K, M, BLOCK_K, BLOCK_M, TMA).T
            else:
                x = _get(a, row, k, M, K, BLOCK_M, BLOCK_K, TMA)
            if MODE == "forward":
                w = _get(b, col, k, N, K, BLOCK_N, BLOCK_K, TMA).T
            else:
                w = _get(b, k, col, K, N, BLOCK_K, BLOCK_N, TMA)
            z = tl.dot(x, w, z)
        left, right = tl.split(z.reshape(BLOCK_M, 2, HALF).permute(0, 2, 1))
        _finish(left, out, slope, bias, sums, row, col, M, N, MODE, RELU, KEEP, BLOCK_M, HALF, TMA, SLOPE_TMA, FAST)
        _finish(right, out, slope, bias, sums, row, col + HALF, M, N, MODE, RELU, KEEP, BLOCK_M, HALF, TMA, SLOPE_TMA, FAST)


@triton.jit
def _activate(z_ptr, y_ptr, slope_ptr, count, RELU: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    y, slope = _activation(tl.load(z_ptr + index, mask=inside), RELU)
    tl.store(y_ptr + index, y, mask=inside)
    if KEEP:
        tl.store(slope_ptr + index, slope, mask=inside)


@triton.jit
def _chain(
    dy_ptr, slope_ptr, dz_ptr, sums_ptr, row_stride, col_stride, M, N,
    RELU: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """dz = dy * slope, and its column sums over the rows of each program. ``dz`` may be ``dy``."""
    row, col = tl.program_id(0).to(tl.int64) * BLOCK_M, tl.program_id(1) * BLOCK_N
    i, j = (row + tl.arange(0, BLOCK_M))[:, None], (col + tl.arange(0, BLOCK_N))[None, :]
    inside = (i < M) & (j < N)
    dy = tl.load(dy_ptr + i * row_stride + j.to(tl.int64) * col_stride, mask=inside, other=0).to(ARITHMETIC)
    d = tl.load(slope_ptr + i * N + j, mask=inside, other=0)
    dz = tl.where(d > 0, dy, 0.0) if RELU else dy * d.to(ARITHMETIC)
    tl.store(dz_ptr + i * N + j, dz.to(dz_ptr.dtype.element_ty), mask=inside)
    columns = col + tl.arange(0, BLOCK_N)
    tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * N + columns, tl.sum(dz, axis=0), mask=columns < N)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _multiply(
    mode: str, a: Tensor, b: Tensor, out: Tensor, slope: Tensor | None, bias: Tensor | None, sums: Tensor | None,
    depth: int, relu: bool, tiling: Tiling, slope_tma: bool = True, fast: bool = False,
) -> None:
    """``out`` of ``mode`` from ``a`` and ``b``, a product over ``depth``; all row-major."""
    rows, cols = out.shape
    if out.numel() == 0:
        return
    left, right = [tiling.m, tiling.k], [tiling.k, tiling.n]
    keep = slope is not None if mode == "forward" else sums is not None
    stored = [tiling.m, tiling.n // 2]
    def passed(matrix: Tensor, block: list[int]) -> Any:
        return TensorDescriptor.from_tensor(matrix, block) if tiling.tma else matrix
    operands = (
        passed(a, left[::-1] if mode == "weight" else left),
        passed(b, right[::-1] if mode == "forward" else right),
        passed(out, stored),
        passed(out if slope is None else slope, stored) if slope_tma else (out if slope is None else slope),
    )
    tiles = triton.cdiv(rows, tiling.m) * triton.cdiv(cols, tiling.n)
    programs = min(tiles, _processors(out.device) * tiling.resident) if tiling.tma else tiles
    with torch.cuda.device_of(out):
        _product[(programs,)](
            *operands, bias if bias is not None else out, sums if sums is not None else out, rows, cols, depth,
            MODE=mode, RELU=relu, KEEP=keep, BLOCK_M=tiling.m, BLOCK_N=tiling.n, BLOCK_K=tiling.k, GROUP=tiling.group,
            PROGRAMS=programs, TMA=tiling.tma, SLOPE_TMA=tiling.tma and slope_tma, FLATTEN=tiling.flatten, FAST=fast,
            num_warps=tiling.warps, num_stages=tiling.stages,
        )


def tiling_for(x: Tensor) -> Tiling:
    """How products are cut up where ``x`` is, [batch, dim] of a narrow type."""
    if TensorDescriptor is None or not x.is_cuda or torch.cuda.get_device_capability(x.device) < (9, 0):
        return AMPERE
    return HOPPER if x.shape[1] % 8 == 0 else AMPERE  # the copy engine wants rows of a multiple of 16 bytes


def _layer(h: Tensor, w: Tensor, b: Tensor, relu: bool, keep: bool) -> tuple[Tensor, Tensor | None]:
    """A layer's activation, and its derivative if it is to be kept; relu's shows in the activation itself."""
    if h.dtype in NARROW:
        y = torch.empty_like(h)
        slope = torch.empty_like(h) if keep and not relu else None
        _multiply("forward", h, w, y, slope, b, None, h.shape[1], relu, tiling_for(h))
        return y, y if keep and relu else slope
    z = torch.addmm(b, h, w.t())
    y, count = torch.empty_like(h), z.numel()
    if count:
        with torch.cuda.device_of(h):
            grid = (triton.cdiv(count, ELEMENTS),)
            _activate[grid](z, y, z, count, RELU=relu, KEEP=keep and not relu, BLOCK=ELEMENTS, num_warps=4)
    return y, (y if relu else z) if keep else None


def _chained(dy: Tensor, w: Tensor, slope: Tensor, sums: Tensor, relu: bool) -> Tensor:
    """dz of the layer below from ``dz`` of that with ``w``, and its column sums by tiles."""
    dz = torch.empty_like(slope)
    if dy.dtype in NARROW:
        _multiply("chain", dy, w, dz, slope, None, sums, dy.shape[1], relu, tiling_for(dy))
        return dz
    torch.mm(dy, w, out=dz)
    return _through(dz, slope, dz, sums, relu)


def _through(dy: Tensor, slope: Tensor, dz: Tensor, sums: Tensor, relu: bool) -> Tensor:
    """dz = dy * slope, where ``dy`` is not a product, or is one already."""
    rows, cols = dy.shape
    if dy.numel():
        arithmetic = tl.float64 if dy.dtype == torch.float64 else tl.float32
        with torch.cuda.device_of(dy):
            _chain[triton.cdiv(rows, ROWS), triton.cdiv(cols, COLS)](
                dy, slope, dz, sums, dy.stride(0), dy.stride(1), rows, cols,
                RELU=relu, ARITHMETIC=arithmetic, BLOCK_M=ROWS, BLOCK_N=COLS, num_warps=4,
            )
    return dz


def _forward(x: Tensor, params: tuple[Tensor, ...], relu: bool, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Each layer's input and, last, the output; and the derivatives of the activations, if they are to be kept."""
    values, slopes = [x], []
    for w, b in zip(params[::2], params[1::2], strict=True):
        y, slope = _layer(values[-1], w, b, relu, keep)
        if not keep:
            values = []
        values.append(y)
        if slope is not None:
            slopes.append(slope)
    return values, slopes


def _backward(
    dy: Tensor, values: list[Tensor], weights: list[Tensor], slopes: list[Tensor], relu: bool, of_x: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """The gradient of x, if it is wanted, and those of the parameters, in their order."""
    rows, cols = dy.shape
    kind = torch.float64 if dy.dtype == torch.float64 else torch.float32
    sums = torch.empty(len(weights), triton.cdiv(rows, ROWS), cols, dtype=kind, device=dy.device)
    dz = _through(dy, slopes[-1], torch.empty_like(slopes[-1]), sums[-1], relu)
    of_weights: list[Tensor] = []
    for layer in reversed(range(len(weights))):
        of_weights.append(torch.mm(dz.t(), values[layer]))
        if layer:
            dz = _chained(dz, weights[layer], slopes[layer - 1], sums[layer - 1], relu)
    of_biases = sums.sum(1).to(dy.dtype).unbind()
    return torch.mm(dz, weights[0]) if of_x else None, [*chain(*zip(reversed(of_weights), of_biases, strict=True))]


def mlp(x: Tensor, *params: Tensor, activation: str) -> Tensor:
    """Forward pass, as in ``kernels.mlp``. It can be differentiated once.

    Raises:
        Unsupported: ``x`` is not on a GPU, and Triton's interpreter is off.
        ValueError: a parameter is not of the shape that the width of ``x`` asks for.

    """
    require_gpu(x)
    dim = x.shape[1]
    for index, param in enumerate(params):
        if param.shape != ((dim,) if index % 2 else (dim, dim)):
            raise ValueError(f"parameter {index} is {tuple(param.shape)}, which does not fit x of width {dim}")
    relu = activation == "relu"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *params)):
        y: Tensor = _Differentiable.apply(relu, x, *params)
        return y
    given = [tensor.contiguous() for tensor in (x, *params)]
    return _forward(given[0], tuple(given[1:]), relu, keep=False)[0][-1]


class _Differentiable(torch.autograd.Function):
    """``mlp`` as one step of autograd's."""

    @staticmethod
    def forward(ctx: Any, relu: bool, x: Tensor, *params: Tensor) -> Tensor:
        given = [tensor.contiguous() for tensor in (x, *params)]
        values, slopes = _forward(given[0], tuple(given[1:]), relu, keep=True)
        ctx.relu, ctx.layers = relu, len(params) // 2
        ctx.save_for_backward(*values[:-1], *given[1::2], *slopes)
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved, layers = ctx.saved_tensors, ctx.layers
        values, weights, slopes = (list(saved[layers * part : layers * (part + 1)]) for part in range(3))
        of_x, of_params = _backward(dy, values, weights, slopes, ctx.relu, ctx.needs_input_grad[1])
        return None, of_x, *of_params
