"""Linear layer with an int8 weight in Triton. For few tokens, reading the weight takes the time: half of 16 bits' time.

The weight is multiplied on tensor cores: int8 is exact in 16 bits, and in tf32, of which float32 x is a sum of two, but
for its last bit (``matmul_pointers``). A tile of the weight is the left side of the product, so that the tokens may be
as few as 8. Tensor cores truncate long sums; for float32 they add only a block, and ordinary instructions add the
blocks.

Scales multiply the sums of their groups, in float32. If several short groups fit into a tile, they multiply the weight
instead, rounded to the type of x, since a narrower tile would be read more slowly.

Several programs share a tile, each with a part of k, so that all multiprocessors read. The last one to arrive adds the
parts, always in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..matmul._triton_kernels import _is_last, _rounded, _sum_of
from ..stream_memory import counters
from ..tensor_cores import promote
from ..triton_device import multiprocessors, require_gpu, require_products
from ..triton_launch import each_time, planned, repeatable
from ..unsupported import Unsupported
from ._operands import require_quantized

TYPES = (torch.float32, torch.float16, torch.bfloat16)
TILES = (  # tokens, rows of the weight, features, warps and stages: the first with enough tokens
    (8, 64, 128, 4, 4),
    (16, 32, 128, 2, 6),
    (32, 64, 128, 2, 4),
    (64, 64, 128, 4, 3),
)
PROGRAMS = 4  # of a multiprocessor, from which on k is not split
# What has a scale: a row of the weight | a step along k | each of several groups in a step.
ROW, STEP, TILE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _linear_int8(
    x, weight, scale, y, parts, counted, m, n, k, group, groups,
    x_m, x_k, w_n, w_k, s_n, s_g, one,
    SCALED: tl.constexpr, EVEN: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles = tiles_m * tl.cdiv(n, BLOCK_N)
    tile = (tl.program_id(0) % tiles).to(tl.int64)
    part = tl.program_id(0) // tiles
    row = tile % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_m, inside_n = (row < m)[None, :], (col < n)[:, None]
    weight += col[:, None] * w_n
    x += row[None, :] * x_m
    scale += col * s_n
    inner = tl.cdiv(group, BLOCK_K) if SCALED == STEP else 1  # steps of a group
    steps = groups * inner if SCALED == STEP else tl.cdiv(k, BLOCK_K)
    first, last = part * steps // SPLIT_K, (part + 1) * steps // SPLIT_K
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        if SCALED == STEP:
            start = step // inner * group + step % inner * BLOCK_K
            end = tl.minimum((step // inner + 1) * group, k)
        else:
            start = step * BLOCK_K
            end = k
        at = start + tl.arange(0, BLOCK_K)
        inside_k = at < end
        w_mask = inside_n if EVEN else inside_n & inside_k[None, :]
        w_tile = tl.load(weight + at[None, :].to(tl.int64) * w_k, mask=w_mask, other=0)
        if SCALED == STEP:
            s = tl.load(scale + (step // inner).to(tl.int64) * s_g, mask=col < n, other=0.0)[:, None]
        elif SCALED == TILE:
            g = step * GROUPS + tl.arange(0, GROUPS)
            s_mask = inside_n & (g < groups)[None, :]
            s = tl.load(scale[:, None] + g[None, :].to(tl.int64) * s_g, mask=s_mask, other=0.0)[:, :, None]
            wide = tl.reshape(w_tile, (BLOCK_N, GROUPS, BLOCK_K // GROUPS)).to(tl.float32) * s.to(tl.float32)
            w_tile = tl.reshape(wide, (BLOCK_N, BLOCK_K))
        x_mask = inside_m if EVEN else inside_m & inside_k[:, None]
        x_tile = tl.load(x + at[:, None].to(tl.int64) * x_k, mask=x_mask, other=0.0)
        if SCALED == STEP:
            acc += _add(tl.zeros_like(acc), w_tile, x_tile, one) * s.to(tl.float32)
        else:
            acc = _add(acc, w_tile, x_tile, one)
    last_one = True
    if SPLIT_K > 1:
        area: tl.constexpr = BLOCK_N * BLOCK_M
        place = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        parts += tile * (SPLIT_K * area)
        tl.store(parts + part * area + place, acc)
        last_one = _is_last(counted + tile, SPLIT_K)
        if last_one:
            acc = _sum_of(parts, place, area, SPLIT_K)
    if last_one:
        if SCALED == ROW:
            acc *= tl.load(scale, mask=col < n, other=0.0).to(tl.float32)[:, None]
        tl.store(y + row[None, :] * n + col[:, None], acc.to(y.dtype.element_ty), mask=inside_m & inside_n)


@triton.jit
def _add(acc, w_tile, x_tile, one):
    """Return ``acc`` plus the product of a tile of the weight, int8, and one of x."""
    if x_tile.dtype == tl.float32:
        w_tile = w_tile.to(tl.float32)
        big = _rounded(x_tile)
        rest = tl.where(tl.abs(x_tile) == float("inf"), 0.0, x_tile - big)
        part = tl.dot(w_tile, rest, input_precision="tf32")
        part = tl.dot(w_tile, big, part, input_precision="tf32")
        return promote(acc, part, one)
    else:  # noqa: RET505 - without it both branches are compiled
        return tl.dot(w_tile.to(x_tile.dtype), x_tile, acc)


def plan_for(m: int, n: int, k: int, group: int, itemsize: int, processors: int) -> tuple[int, ...]:
    """Return what has a scale, a tile as in ``TILES``, and the programs that share one, for x [m, k], weight [n, k]."""
    block_m, block_n, block_k, warps, stages = next(tile for tile in TILES if m <= tile[0] or tile is TILES[-1])
    if itemsize == 4:
        block_n, block_k, warps, stages = 64, 64, 4, 3
    block_k = min(block_k, max(16, triton.next_power_of_2(k)))
    scaled, power = (STEP if group else ROW), group & -group  # the largest power of 2 that divides it
    if 16 <= group == power < block_k and itemsize == 2:
        scaled = TILE
    elif group:
        block_k = min(block_k, power if power >= 32 else max(16, triton.next_power_of_2(group)))
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    split = max(1, min(PROGRAMS * processors // tiles, triton.cdiv(k, block_k) // 4))
    split = triton.next_power_of_2(split + 1) // 2  # few kernels are compiled
    return scaled.value, block_m, block_n, block_k, warps, stages, split


@planned
def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, *, group: int, SPLIT_K: int | None = None) -> Tensor:
    """Compute y; shapes and dtypes as in ``kernels.linear_int8``, with any strides.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: the operands do not fit, by ``require_quantized``.

    """
    require_gpu(x)
    require_products()
    if x.dtype not in TYPES:
        raise Unsupported(f"this kernel takes {', '.join(map(str, TYPES))}; convert x from {x.dtype}")
    require_quantized(x, weight, scale, group)
    (m, k), n = x.shape, weight.shape[0]
    y = each_time(torch.empty, m, n, dtype=x.dtype, device=x.device)
    if y.numel() == 0 or k == 0:
        return y.zero_()
    groups = scale.shape[1]
    plan = plan_for(m, n, k, group if groups > 1 else 0, x.itemsize, multiprocessors(x))
    scaled, block_m, block_n, block_k, warps, stages, splits = plan
    splits = SPLIT_K or splits
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    parts = counted = y
    if splits > 1:
        parts = each_time(torch.empty, tiles * splits * block_m * block_n, dtype=torch.float32, device=x.device)
        counted = counters(y, tiles)
    of_step = scaled == STEP.value
    repeatable(_linear_int8)[(tiles * splits,)](
        x, weight, scale, y, parts, counted, m, n, k, group, groups,
        *x.stride(), *weight.stride(), *scale.stride(), 1.0,
        SCALED=scaled, EVEN=(group if of_step else k) % block_k == 0 and not (of_step and k % group),
        GROUPS=block_k // group if scaled == TILE.value else 1, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        SPLIT_K=splits, STAGES=stages, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y
