"""MLP in Triton. The product of each layer has the bias and the activation, or its derivative, as its epilogue.

Forward computes z = h w^T + b and y = activation(z) for each layer, and keeps the derivative y'(z) instead of z. Both
come from one exp, and backward has no activation left to evaluate. Backward is a chain of products, dz = (dz' w') *
y'(z). Each of them also adds the columns of its tiles, for the gradient of the bias. For each layer there is a product
dw = dz^T h, by ``kernels.matmul`` or cuBLAS. No layer waits for the dw of another. If these products are long they run
on a side stream, and fill the multiprocessors that the last tiles of the chain leave idle.

float32 has no such kernel: ``kernels.matmul`` multiplies, and one kernel for each layer adds the bias and computes the
activation, or multiplies by its derivative. The same holds for float16 and bfloat16 where the tiles of
``_triton_products`` would leave too many multiprocessors idle, and for float64, but cuBLAS multiplies. Small float32
layers have their own kernels, one for each layer: see ``_triton_small``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..matmul.triton import chosen as chosen_by_matmul
from ..matmul.triton import matmul
from ..padding import room
from ..side_stream import SideStream
from ..spans import span
from ..tensor_cores import has_roles
from ..triton_device import require_gpu, require_products
from ..triton_launch import planned, repeatable
from . import _triton_small
from ._triton_products import Tiling, activation_and_slope, aligned, chained, linear, tiling_for

NARROW = (torch.float16, torch.bfloat16)
ROWS, COLS, WARPS = 128, 64, 8  # of a program of _through_activation; with 4 warps, float64 spills
ACTIVATED_ROWS, ACTIVATED_COLS = 8, 128  # of a program of _activate
FEW_ROWS = 128  # up to this many, cuBLAS is faster for dw in float32, which is bound by memory
LONG = 2**32  # from this many multiplications of a product on, a side stream gains more than its host time


@triton.jit
def _activate(
    z_ptr, b_ptr, y_ptr, slope_ptr, rows, cols,
    RELU: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    i, j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (i < rows)[:, None] & (j < cols)[None, :]
    index = i[:, None] * cols + j[None, :]
    z, b = tl.load(z_ptr + index, mask=inside), tl.load(b_ptr + j, mask=j < cols)[None, :]
    narrow: tl.constexpr = z.dtype.primitive_bitwidth == 16
    if narrow:
        z, b = z.to(tl.float32), b.to(tl.float32)
    y, slope = activation_and_slope(z + b, RELU, FINE=not narrow)
    tl.store(y_ptr + index, y, mask=inside)
    if KEEP:
        tl.store(slope_ptr + index, slope, mask=inside)


@triton.jit
def _through_activation(
    dy_ptr,
    slope_ptr,
    dz_ptr,
    sums_ptr,
    row_stride,
    col_stride,
    slope_stride,
    dz_stride,
    rows,
    cols,
    width,
    RELU: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    band, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLS + tl.arange(0, COLS)
    i = (band * ROWS + tl.arange(0, ROWS))[:, None]
    inside = (i < rows) & (j < cols)[None, :]
    stored = (i < rows) & (j < width)[None, :]  # padding may hold anything
    dy = tl.load(dy_ptr + i * row_stride + j.to(tl.int64)[None, :] * col_stride, mask=inside, other=0).to(ARITHMETIC)
    slope = tl.load(slope_ptr + i * slope_stride + j[None, :], mask=stored, other=0)
    dz = tl.where(slope <= 0, 0.0, dy) if RELU else dy * slope.to(ARITHMETIC)
    tl.store(dz_ptr + i * dz_stride + j[None, :], dz.to(dz_ptr.dtype.element_ty), mask=stored)
    tl.store(sums_ptr + band * cols + j, tl.sum(dz, axis=0), mask=j < cols)


def mlp(x: Tensor, *params: Tensor, activation: str) -> Tensor:
    """Compute the forward pass; shapes and dtypes as in ``kernels.mlp``. Autocast does not change the dtype.

    The result can be differentiated once.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off.
        ValueError: the shape of a parameter does not fit the width of ``x``, or ``activation`` is unknown.

    """
    require_gpu(x)
    require_products()
    dim = x.shape[1]
    for index, param in enumerate(params):
        if param.shape != ((dim,) if index % 2 else (dim, dim)):
            raise ValueError(f"parameter {index} is {tuple(param.shape)}, which does not fit x of width {dim}")
    if activation not in ("gelu", "relu"):
        raise ValueError(f"activation {activation!r}: give gelu or relu")
    relu = activation == "relu"
    y, *given = (tensor.contiguous() for tensor in (x, *params))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *params)):
        return apply(_Differentiable, relu, y, *given)
    tiling, last = _tiling(y), len(given) // 2 - 1
    y = _readable(y, tiling)
    for index, (w, b) in enumerate(zip(given[::2], given[1::2], strict=True)):
        with span(f"layer_{index}"):
            y, _ = _layer(y, _readable(w, tiling), b, relu, tiling, keep=False, last=index == last)
    return y


def chosen() -> str:
    """Return a description of what multiplied in the last call; empty before the first call."""
    if not _last:
        return ""
    dtype, tiling, small = _last
    if tiling is not None:
        return f"tiles of {tiling.m}x{tiling.n}x{tiling.k}, {tiling.stages} stages, {tiling.warps} warps"
    if small:
        return f"one kernel a layer, {_triton_small.PRECISION} forward"
    return f"matmul: {chosen_by_matmul()}" if dtype == torch.float32 else "cuBLAS"


_last: list[Any] = []


class _Differentiable(torch.autograd.Function):
    """``mlp`` of contiguous tensors as one autograd function, which saves the input and the slope of each layer."""

    @staticmethod
    def forward(ctx: Any, relu: bool, x: Tensor, *params: Tensor) -> Tensor:
        tiling, layers = _tiling(x), len(params) // 2
        y = _readable(x, tiling)
        inputs, weights, slopes = [], [], []
        for index, (w, b) in enumerate(zip(params[::2], params[1::2], strict=True)):
            with span(f"layer_{index}"):
                inputs.append(y)
                weights.append(_readable(w, tiling))
                y, slope = _layer(y, weights[-1], b, relu, tiling, keep=True, last=index == layers - 1)
            slopes.append(slope)
        ctx.relu, ctx.layers = relu, layers
        # Save the parameters too, which may have been copied: one that has changed must raise, and a second derivative
        # must raise on its way to any of them.
        ctx.save_for_backward(*inputs, *weights, *slopes, *params)
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        layers = ctx.layers
        inputs, weights, slopes = (saved[layers * part : layers * (part + 1)] for part in range(3))
        if _triton_small.small(dy):
            return None, *_small_backward(dy, inputs, weights, slopes, ctx.relu, ctx.needs_input_grad[1])
        rows, cols = dy.shape
        tiling = _tiling(dy)
        kind = torch.float64 if dy.dtype == torch.float64 else torch.float32
        band = ROWS if tiling is None else tiling.m
        sums = torch.empty(layers, triton.cdiv(rows, band), cols, dtype=kind, device=dy.device)
        dz = _through(dy, slopes[-1], _between(dy, tiling), sums[-1], ctx.relu, band)
        side = SideStream(dy, enabled=rows * cols * cols >= LONG)
        try:
            of_weights = [_of_weight(dz, inputs[-1], side)]
            for layer in reversed(range(layers - 1)):
                dz = _below(dz, weights[layer + 1], slopes[layer], sums[layer], ctx.relu, tiling)
                of_weights.append(_of_weight(dz, inputs[layer], side))
            of_x = _multiply(dz, weights[0], dy.new_empty(rows, cols)) if ctx.needs_input_grad[1] else None
            of_biases = (sums[:, 0] if sums.shape[1] == 1 else sums.sum(1)).to(dy.dtype).unbind()
        finally:  # also after an out-of-memory error
            side.join()
        return None, of_x, *chain(*zip(reversed(of_weights), of_biases, strict=True))


def _tiling(x: Tensor) -> Tiling | None:
    """Return the tiles of layers with input ``x`` [rows, dim]; None if cuBLAS multiplies."""
    return tiling_for(x) if x.dtype in NARROW else None


def _readable(x: Tensor, tiling: Tiling | None) -> Tensor:
    """Return the contiguous ``x``, or a copy if the copy engine cannot read it."""
    return aligned(x) if tiling is not None and tiling.copy_engine else x


def _between(like: Tensor, tiling: Tiling | None) -> Tensor:
    """Return an uninitialized matrix of the shape of ``like`` for values between two layers."""
    rows, cols = like.shape
    if tiling is not None and tiling.copy_engine:
        return room(rows, cols, like)
    return torch.empty(rows, cols, dtype=like.dtype, device=like.device)


def _layer(
    h: Tensor, w: Tensor, b: Tensor, relu: bool, tiling: Tiling | None, *, keep: bool, last: bool
) -> tuple[Tensor, Tensor | None]:
    """Return a layer's activation, and its derivative if ``keep``. For relu the second is the activation itself.

    The activation of the last layer is contiguous.
    """
    y = _between(h, None if last else tiling)
    small = tiling is None and _triton_small.small(h)
    if not torch.compiler.is_compiling():  # which cannot trace it
        _last[:] = [h.dtype, tiling, small]
    if tiling is not None:
        slope = _between(h, tiling) if keep and not relu else None
        linear(h, w, b, relu, y, slope, tiling)
    elif small:
        slope = torch.empty_like(y) if keep and not relu else None
        _triton_small.linear(h, w, b, relu, y, slope)
    else:
        slope = torch.empty_like(y)  # holds h w^T until the derivative overwrites it
        _multiply(h, w.t(), slope)
        if y.numel():
            repeatable(_activate)[triton.cdiv(y.shape[0], ACTIVATED_ROWS), triton.cdiv(y.shape[1], ACTIVATED_COLS)](
                slope,
                b,
                y,
                slope,
                *y.shape,
                RELU=relu,
                KEEP=keep and not relu,
                ROWS=ACTIVATED_ROWS,
                COLS=ACTIVATED_COLS,
                num_warps=4,
            )
    return y, (y if relu else slope) if keep else None


def _small_backward(
    dy: Tensor,
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    slopes: Sequence[Tensor],
    relu: bool,
    of_input: bool,
) -> list[Tensor | None]:
    """Return the gradients of x, None unless ``of_input``, and of the parameters."""
    dz: Tensor | None = dy
    slope: Tensor | None = slopes[-1]
    found: list[Tensor | None] = []
    for layer in reversed(range(len(slopes))):
        slope_below = slopes[layer - 1] if layer else None
        assert dz is not None
        dw, db, dz = _triton_small.gradients(
            dz, slope, weights[layer], inputs[layer], slope_below, relu, below=layer > 0 or of_input
        )
        found = [dw, db, *found]
        slope = None
    return [dz, *found]


def _of_weight(dz: Tensor, h: Tensor, side: SideStream) -> Tensor:
    """Return the gradient of a weight, which the side stream computes."""
    dw = torch.empty(dz.shape[1], h.shape[1], dtype=h.dtype, device=h.device)
    if h.dtype == torch.float32:
        ours = len(h) > FEW_ROWS
    else:  # cuBLAS is 3 % slower for long products; for short ones host time dominates
        ours = _padded(h) or (side.active and h.dtype in NARROW and has_roles(h))
    product = _traceable(ours)
    side.run(lambda: product(dz.t(), h, out=dw), dz, h)
    return dw


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Return a b, written into the contiguous ``out``. With ``out=``, autocast does not round float32 to 16 bits."""
    return _traceable(a.dtype == torch.float32 or _padded(b))(a, b, out=out)


def _traceable(ours: bool) -> Callable[..., Tensor]:
    """Return ``matmul`` if ``ours``, else cuBLAS's product; torch.compile can trace only the latter."""
    return matmul if ours and not torch.compiler.is_compiling() else torch.mm


def _padded(x: Tensor) -> bool:
    """Return whether ``x`` is padded. cuBLAS then multiplies slowly: rows of the result are not aligned."""
    return not (x.is_contiguous() or x.t().is_contiguous())


def _below(dz: Tensor, w: Tensor, slope: Tensor, sums: Tensor, relu: bool, tiling: Tiling | None) -> Tensor:
    """Return the gradient of the z of the layer below, and write its sums into ``sums``.

    ``dz`` and ``w`` belong to the layer above, ``slope`` to the layer below.
    """
    out = _between(dz, tiling)
    if tiling is not None:
        chained(dz, w, slope, relu, out, sums, tiling)
        return out
    return _through(_multiply(dz, w, out), slope, out, sums, relu, ROWS)


@planned
def _through(dy: Tensor, slope: Tensor, dz: Tensor, sums: Tensor, relu: bool, band: int) -> Tensor:
    """Write the gradient of z into ``dz`` and its sums into ``sums``, given ``dy``, the gradient of y, at any strides.

    ``dz`` may be ``dy``. Sums are for each band of ``band`` rows. Returns ``dz``.
    """
    rows, cols = dy.shape
    if dy.numel():
        repeatable(_through_activation)[sums.shape[0], triton.cdiv(cols, COLS)](
            dy,
            slope,
            dz,
            sums,
            dy.stride(0),
            dy.stride(1),
            slope.stride(0),
            dz.stride(0),
            rows,
            cols,
            dz.stride(0) if rows > 1 and dz.stride(0) == slope.stride(0) else cols,
            RELU=relu,
            ARITHMETIC=tl.float64 if dy.dtype == torch.float64 else tl.float32,
            ROWS=band,
            COLS=COLS,
            num_warps=WARPS,
        )
    return dz
