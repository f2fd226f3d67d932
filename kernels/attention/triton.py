"""Attention in Triton, forward and backward, without the matrix of scores in memory.

On Hopper the tensor memory accelerator loads blocks of 16-bit operands whose rows are contiguous and begin at multiples
of 16 bytes. It reads zeros outside of a tensor, so any length and any multiple of 8 of d are whole blocks to it. Other
operands, and other GPUs, are read by pointers and masks.

float32 is multiplied on tensor cores with the accuracy of float32 ("tf32x3": three products of tf32 numbers), or as
tf32 if torch's setting for products allows it.

Each result has one order of additions, so the same operands give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..tensor_cores import TensorDescriptor, float32_setting, has_descriptors
from ..triton_device import require_gpu, require_products, shared_bytes
from ..triton_launch import each_time, planned, repeatable, unchanged
from ..unsupported import Unsupported
from ._configurations import FORWARD_SHARE, Blocks, forward_blocks, keys_blocks, queries_blocks, together
from ._operands import LOG2_E, require_attention, scale_of
from ._triton_backward import (
    attention_backward_keys,
    attention_backward_queries,
    attention_backward_start,
)
from ._triton_forward import attention_forward

LARGEST_D = 128
LEAST_D = LEAST_BLOCK = 16  # of a product of tensor cores
PARTS = 8  # of a row, of which a thread keeps sums; by tensor cores it has 2 of every 8 columns
ROWS = 64  # queries of a program that only reads and writes
ALIGNED = 16  # bytes
FAR = 2**31 // 256  # elements from one row of a tile to the next; a tile has up to 128 rows and 128 columns

Wanted = tuple[bool, bool]  # dq; dk and dv
Asked = tuple[int | None, int | None, int | None, int | None]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    BLOCK_M: int | None = None,
    BLOCK_N: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> Tensor:
    """Compute attention; shapes and dtypes as in ``kernels.attention``. The result can be differentiated once.

    Args:
        q: queries.
        k: keys.
        v: values.
        causal: does a query see no later keys?
        BLOCK_M: queries of a program of the forward, a power of 2, at least 16. None, as for the next three: chosen by
            the GPU, the dtype and d.
        BLOCK_N: keys of a step of the forward, a power of 2, at least 16.
        num_warps: warps of a program of the forward, a power of 2.
        num_stages: steps of the forward in flight.

    Raises:
        Unsupported: the tensors are not on a GPU and Triton's interpreter is off, or they have another dtype, or d is
            greater than 128.
        ValueError: the operands do not fit together, a causal query would see no key, or a block has another size.

    """
    asked = (BLOCK_M, BLOCK_N, num_warps, num_stages)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return apply(_Differentiable, q, k, v, causal, asked)
    return _forward(q, k, v, causal, asked)[0]


@planned
def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, asked: Asked) -> tuple[Tensor, Tensor]:
    """Return y, and float32 [batch, heads, length], the logarithm to base 2 of the sum of each query's weights."""
    require_gpu(q)
    require_products()
    require_attention(q, k, v, causal)
    if q.shape[3] > LARGEST_D:
        raise Unsupported(f"attention in Triton takes d up to {LARGEST_D}; this is {q.shape[3]}")
    q, k, v = map(_near, (q, k, v))
    y = each_time(torch.empty_like, q)
    lse = each_time(torch.empty, *q.shape[:3], dtype=torch.float32, device=q.device)
    if q.numel():
        chosen = forward_blocks(has_descriptors(q), q.element_size(), _width(q))
        pairs = zip(Blocks._fields, asked, strict=True)
        given: dict[str, Any] = {name: value for name, value in pairs if value is not None}
        if any(n < LEAST_BLOCK or n & (n - 1) for n in (given.get("queries", 16), given.get("keys", 16))):
            raise ValueError(f"BLOCK_M={asked[0]} BLOCK_N={asked[1]}: give powers of 2 of at least {LEAST_BLOCK}")
        launch_forward(q, k, v, y, lse, causal, chosen._replace(**given))
    return y, lse


def launch_forward(q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, causal: bool, blocks: Blocks) -> None:
    """Write y, and what the backward needs, with these ``blocks``."""
    batch, heads, length, d = q.shape
    by_descriptors = all(map(describable, (q, k, v)))
    width = _width(q)
    repeatable(attention_forward)[(triton.cdiv(length, blocks.queries) * batch * heads,)](
        _tiles(q, blocks.queries, width, by_descriptors),
        *(_tiles(x, blocks.keys, width, by_descriptors) for x in (k, v)),
        y, lse, *q.stride(), *k.stride(), *v.stride(), *y.stride(),
        batch * heads, together(batch * heads, k.shape[2], width, k.element_size(), FORWARD_SHARE),
        heads, heads // k.shape[1], length, k.shape[2], d, scale_of(d) * LOG2_E,
        CAUSAL=causal, TMA=by_descriptors, PRECISION=_precision(q), PARTS=PARTS, D=width, BM=blocks.queries,
        BN=blocks.keys, STAGES=blocks.stages, num_warps=blocks.warps,
    )  # fmt: skip


@planned
def _backward(
    q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, dy: Tensor, causal: bool, wanted: Wanted
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of q, and of k and v, as far as they are ``wanted``, given the gradient ``dy`` of ``y``."""
    q, k, v, dy = map(_near, (q, k, v, dy))
    dq = each_time(torch.empty_like, q) if wanted[0] else None
    make = torch.empty_like if q.numel() else torch.zeros_like
    dk, dv = (each_time(make, x) if wanted[1] else None for x in (k, v))
    if not q.numel():
        return dq, dk, dv
    known = has_descriptors(q), q.element_size(), _width(q)
    blocks = keys_blocks(*known, shared_bytes(q)), queries_blocks(*known)
    launch_backward(q, k, v, y, lse, dy, dq, dk, dv, causal, *blocks)
    return dq, dk, dv


def launch_backward(
    q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, dy: Tensor,
    dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, causal: bool, of_keys: Blocks, of_queries: Blocks,
) -> None:  # fmt: skip
    """Write dk and dv with the blocks ``of_keys``, and dq with those ``of_queries``; None: it is not wanted."""
    batch, heads, length, d = q.shape
    kv_heads, kv_length, width = k.shape[1], k.shape[2], _width(q)
    delta = each_time(torch.empty, batch, heads, length, dtype=torch.float32, device=q.device)
    repeatable(attention_backward_start)[(triton.cdiv(length, ROWS) * batch * heads,)](
        y, dy, delta, *y.stride(), *dy.stride(), heads, length, d, D=width, BM=ROWS
    )
    by_descriptors = all(map(describable, (q, k, v, dy)))
    strides = [stride for x in (q, k, v, dy) for stride in x.stride()]
    sizes = (heads // kv_heads, length, kv_length, d, scale_of(d) * LOG2_E, scale_of(d))
    options = {"CAUSAL": causal, "TMA": by_descriptors, "PRECISION": _precision(q), "D": width}

    def tiles(blocks: Blocks) -> list[Any]:
        pairs = ((q, blocks.queries), (k, blocks.keys), (v, blocks.keys), (dy, blocks.queries))
        return [_tiles(x, rows, width, by_descriptors) for x, rows in pairs]

    if dk is not None and dv is not None:
        repeatable(attention_backward_keys)[(triton.cdiv(kv_length, of_keys.keys) * batch * kv_heads,)](
            *tiles(of_keys), lse, delta, dk, dv, *strides, *dk.stride(), *dv.stride(), batch * kv_heads,
            together(batch * kv_heads, length * heads // kv_heads, width, q.element_size()), kv_heads, *sizes,
            RAGGED=kv_length % of_keys.keys > 0, BM=of_keys.queries, BN=of_keys.keys, STAGES=of_keys.stages,
            num_warps=of_keys.warps, **options,
        )  # fmt: skip
    if dq is not None:
        repeatable(attention_backward_queries)[(triton.cdiv(length, of_queries.queries) * batch * heads,)](
            *tiles(of_queries), lse, delta, dq, *strides, *dq.stride(), batch * heads,
            together(batch * heads, kv_length, width, k.element_size()), heads, *sizes,
            BM=of_queries.queries, BN=of_queries.keys, STAGES=of_queries.stages, num_warps=of_queries.warps, **options,
        )  # fmt: skip


def _width(q: Tensor) -> int:
    """Return d of a tile: a power of 2."""
    width: int = triton.next_power_of_2(q.shape[3])
    return max(LEAST_D, width)


def _near(x: Tensor) -> Tensor:
    """Return ``x``, or a copy if elements of a tile lie so far apart that their places need more than 32 bits."""
    return x if max(x.stride()[2:]) < FAR else x.contiguous()


def _precision(q: Tensor) -> str:
    """Return the precision of products: that of float32, unless torch allows tf32."""
    if q.dtype != torch.float32:
        return "ieee"
    return "tf32" if unchanged(float32_setting) == "tf32" else "tf32x3"


def describable(x: Tensor) -> bool:
    """Return whether a descriptor can read tiles of ``x``: 16 bits, on Hopper, and contiguous and aligned rows."""
    unit = ALIGNED // x.element_size()
    apart = all(stride > 0 and stride % unit == 0 for stride, n in zip(x.stride(), x.shape[:3], strict=False) if n > 1)
    rows = x.stride(3) == 1 and apart and x.data_ptr() % ALIGNED == 0
    return rows and x.element_size() == 2 and has_descriptors(x)


def _tiles(x: Tensor, rows: int, width: int, by_descriptors: bool) -> Any:
    """Return the argument by which a kernel reads tiles of ``rows`` rows: a descriptor, or ``x`` itself."""
    if not by_descriptors:
        return x
    row = triton.cdiv(x.shape[3] * x.element_size(), ALIGNED) * ALIGNED // x.element_size()
    strides = [stride if n > 1 else row for stride, n in zip(x.stride(), x.shape, strict=True)]  # of size 1: any
    return TensorDescriptor(x, list(x.shape), [*strides[:3], 1], [1, 1, rows, width])


class _Differentiable(torch.autograd.Function):
    """``attention`` for autograd, which saves q, k, v, y and a number for each query."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, asked: Asked) -> Tensor:
        y, lse = _forward(q, k, v, causal, asked)
        ctx.save_for_backward(q, k, v, y, lse)
        ctx.causal = causal
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y, lse = saved
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.needs_input_grad[2])
        return *_backward(q, k, v, y, lse, dy, ctx.causal, wanted), None, None
