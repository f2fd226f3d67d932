"""MLP in Triton. The product of each layer has the bias and the activation, or its derivative, as its epilogue.

Forward computes z = h w^T + b and y = activation(z) for each layer, and keeps the derivative y'(z) instead of z. Both
come from one exp, and backward has no activation left to evaluate. Backward is a chain of products, dz = (dz' w') *
y'(z). Each of them also adds the columns of its tiles, for the gradient of the bias. For each layer there is a product
dw = dz^T h, by ``kernels.matmul`` or cuBLAS. No layer waits for the dw of another. If these products are long they run
on a side stream, and fill the multiprocessors that the last tiles of the chain leave idle.

float32 and float64 are multiplied by cuBLAS, since tensor cores would round them; between the products there is one
kernel for each layer. Small float32 layers have their own kernels, one for each layer: see ``_triton_small``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..matmul.triton import matmul
from ..second_derivative import no_second_derivative
from ..side_stream import SideStream
from ..spans import span
from ..tensor_cores import has_roles
from ..triton_device import on_device_of, require_gpu, require_products
from . import _triton_small
from ._triton_products import BAND, activation_and_slope, bands, chained, linear, tiling_for

NARROW = (torch.float16, torch.bfloat16)
COLS, WARPS = 64, 8  # columns and warps of a program of _through_activation; with 4 warps, float64 spills
ELEMENTS = 1024  # elements of a program of _activate
LONG = 2**32  # from this many multiplications of a product on, a side stream gains more than its host time


@triton.jit
def _activate(z_ptr, y_ptr, slope_ptr, count, RELU: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    y, slope = activation_and_slope(tl.load(z_ptr + index, mask=inside), RELU, FINE=True)
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
    rows,
    cols,
    RELU: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    band, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLS + tl.arange(0, COLS)
    i = (band * ROWS + tl.arange(0, ROWS))[:, None]
    inside = (i < rows) & (j < cols)[None, :]
    dy = tl.load(dy_ptr + i * row_stride + j.to(tl.int64)[None, :] * col_stride, mask=inside, other=0).to(ARITHMETIC)
    slope = tl.load(slope_ptr + i * cols + j[None, :], mask=inside, other=0)
    dz = tl.where(slope <= 0, 0.0, dy) if RELU else dy * slope.to(ARITHMETIC)
    tl.store(dz_ptr + i * cols + j[None, :], dz.to(dz_ptr.dtype.element_ty), mask=inside)
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
        result: Tensor = _Differentiable.apply(relu, y, *given)
        return result
    for index, (w, b) in enumerate(zip(given[::2], given[1::2], strict=True)):
        with span(f"layer_{index}"):
            y, _ = _layer(y, w, b, relu, keep=False)
    return y


class _Differentiable(torch.autograd.Function):
    """``mlp`` of contiguous tensors as one autograd function, which saves the input and the slope of each layer."""

    @staticmethod
    def forward(ctx: Any, relu: bool, x: Tensor, *params: Tensor) -> Tensor:
        y, inputs, slopes = x, [], []
        for index, (w, b) in enumerate(zip(params[::2], params[1::2], strict=True)):
            inputs.append(y)
            with span(f"layer_{index}"):
                y, slope = _layer(y, w, b, relu, keep=True)
            slopes.append(slope)
        ctx.relu, ctx.layers = relu, len(slopes)
        # Save the biases too, although no gradient needs them: a second derivative must raise on its way to them.
        ctx.save_for_backward(*inputs, *params[::2], *slopes, *params[1::2])
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        layers = ctx.layers
        inputs, weights, slopes = (saved[layers * part : layers * (part + 1)] for part in range(3))
        if _triton_small.small(dy):
            return None, *_small_backward(dy, inputs, weights, slopes, ctx.relu, ctx.needs_input_grad[1])
        rows, cols = dy.shape
        kind = torch.float64 if dy.dtype == torch.float64 else torch.float32
        sums = torch.empty(layers, bands(rows), cols, dtype=kind, device=dy.device)
        dz = _through(dy, slopes[-1], torch.empty_like(slopes[-1]), sums[-1], ctx.relu)
        side = SideStream(dy, enabled=rows * cols * cols >= LONG)
        try:
            of_weights = [_of_weight(dz, inputs[-1], side)]
            for layer in reversed(range(layers - 1)):
                dz = _below(dz, weights[layer + 1], slopes[layer], sums[layer], ctx.relu)
                of_weights.append(_of_weight(dz, inputs[layer], side))
            of_x = torch.mm(dz, weights[0], out=torch.empty_like(inputs[0])) if ctx.needs_input_grad[1] else None
            of_biases = sums.sum(1).to(dy.dtype).unbind()
        finally:  # also after an out-of-memory error
            side.join()
        return None, of_x, *chain(*zip(reversed(of_weights), of_biases, strict=True))


def _layer(h: Tensor, w: Tensor, b: Tensor, relu: bool, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Return a layer's activation, and its derivative if ``keep``. For relu the second is the activation itself."""
    y = torch.empty_like(h)
    if h.dtype in NARROW:
        slope = torch.empty_like(h) if keep and not relu else None
        linear(h, w, b, relu, y, slope, tiling_for(h, w))
    elif _triton_small.small(h):
        slope = torch.empty_like(h) if keep and not relu else None
        _triton_small.linear(h, w, b, relu, y, slope)
    else:
        # slope holds z until the derivative overwrites it. With ``out=``, autocast does not round z to 16 bits.
        slope = torch.addmm(b, h, w.t(), out=torch.empty_like(h))
        if y.numel():
            with on_device_of(h):
                _activate[(triton.cdiv(y.numel(), ELEMENTS),)](
                    slope, y, slope, y.numel(), RELU=relu, KEEP=keep and not relu, BLOCK=ELEMENTS, num_warps=4
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
    ours = side.active and h.dtype in NARROW and has_roles(h)  # 3 % faster; for short products host time dominates
    product = matmul if ours else torch.mm
    side.run(lambda: product(dz.t(), h, out=dw), dz, h)
    return dw


def _below(dz: Tensor, w: Tensor, slope: Tensor, sums: Tensor, relu: bool) -> Tensor:
    """Return the gradient of the z of the layer below, and write its sums into ``sums``.

    ``dz`` and ``w`` belong to the layer above, ``slope`` to the layer below.
    """
    out = torch.empty_like(slope)
    if dz.dtype in NARROW:
        chained(dz, w, slope, relu, out, sums, tiling_for(dz, w))
        return out
    return _through(torch.mm(dz, w, out=out), slope, out, sums, relu)


def _through(dy: Tensor, slope: Tensor, dz: Tensor, sums: Tensor, relu: bool) -> Tensor:
    """Write the gradient of z into ``dz`` and its sums into ``sums``, given ``dy``, the gradient of y, at any strides.

    ``dz`` may be ``dy``. Returns ``dz``.
    """
    rows, cols = dy.shape
    if dy.numel():
        with on_device_of(dy):
            _through_activation[sums.shape[0], triton.cdiv(cols, COLS)](
                dy,
                slope,
                dz,
                sums,
                dy.stride(0),
                dy.stride(1),
                rows,
                cols,
                RELU=relu,
                ARITHMETIC=tl.float64 if dy.dtype == torch.float64 else tl.float32,
                ROWS=BAND,
                COLS=COLS,
                num_warps=WARPS,
            )
    return dz
