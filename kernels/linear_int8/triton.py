"""Linear layer with an int8 weight in Triton. For few tokens, reading the weight takes the time: half of 16 bits' time.

The weight is multiplied on tensor cores as it is stored: int8 is exact in 16 bits. A tile of the weight is the left
side of the product and the tokens are the right one, which may be as narrow as 16 columns. Scales multiply the sums of
their groups, in float32. If several short groups fit into a tile, they multiply the weight instead, rounded to the type
of x, since a narrower tile would be read more slowly.

int8 is exact in tf32 too. float32 x is the sum of two such numbers, but for its last bit (``matmul_pointers``). Tensor
cores truncate long sums, so they add only a block, and ordinary instructions add the blocks.

Several programs share a tile, each with a part of k, so that all multiprocessors read. The last one to arrive adds the
parts, always in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

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
# What has a scale: a row of the weight | a step along k | each of several groups in a step.
ROW, STEP, TILE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


class Plan(NamedTuple):
    """Tiles of a launch."""

    scaled: int
    block_m: int  # tokens
    block_n: int  # rows of the weight
    block_k: int
    split_k: int  # programs that share a tile
    warps: int
    stages: int  # steps whose tiles are on their way


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
        w_mask = inside_n if EVEN else inside_n & (at < end)[None, :]
        x_mask = inside_m if EVEN else inside_m & (at < end)[:, None]
        w_tile = tl.load(weight + at[None, :].to(tl.int64) * w_k, mask=w_mask, other=0)
        x_tile = tl.load(x + at[:, None].to(tl.int64) * x_k, mask=x_mask, other=0.0)
        if SCALED == ROW:
            acc = _add(acc, w_tile, x_tile, one)
        elif SCALED == STEP:
            s = tl.load(scale + (step // inner).to(tl.int64) * s_g, mask=col < n, other=0.0).to(tl.float32)
            acc += _add(tl.zeros_like(acc), w_tile, x_tile, one) * s[:, None]
        else:
            g = step * GROUPS + tl.arange(0, GROUPS)
            s = tl.load(
                scale[:, None] + g[None, :].to(tl.int64) * s_g, mask=inside_n & (g < groups)[None, :], other=0.0
            )
            wide = (
                tl.reshape(w_tile, (BLOCK_N, GROUPS, BLOCK_K // GROUPS)).to(tl.float32) * s.to(tl.float32)[:, :, None]
            )
            acc = tl.dot(tl.reshape(wide, (BLOCK_N, BLOCK_K)).to(x_tile.dtype), x_tile, acc)
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


def plan_for(m: int, n: int, k: int, group: int, itemsize: int, processors: int) -> Plan:
    """Return the plan for x [m, k] and a weight [n, k] with a scale for each ``group``; 0: for each row."""
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    block_k, scaled = (128 if itemsize == 2 else 64), ROW
    if group and itemsize == 2 and group in (16, 32, 64):
        scaled = TILE
    elif group:
        whole, scaled = group & -group, STEP  # the largest power of 2 that divides it
        block_k = min(block_k, whole if whole >= 32 else max(16, triton.next_power_of_2(group)))
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, 64)
    split = max(1, min(4 * processors // tiles, triton.cdiv(k, block_k) // 4))
    split = triton.next_power_of_2(split + 1) // 2  # few kernels are compiled
    return Plan(scaled.value, block_m, 64, block_k, split, 4, 4 if itemsize == 2 else 3)


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
    splits = SPLIT_K or plan.split_k
    tiles = triton.cdiv(m, plan.block_m) * triton.cdiv(n, plan.block_n)
    parts = counted = y
    if splits > 1:
        size = tiles * splits * plan.block_m * plan.block_n
        parts = each_time(torch.empty, size, dtype=torch.float32, device=x.device)
        counted = counters(y, tiles)
    of_step, of_tile = plan.scaled == STEP.value, plan.scaled == TILE.value
    even = (group if of_step else k) % plan.block_k == 0 and not (of_step and k % group)
    repeatable(_linear_int8)[(tiles * splits,)](
        x, weight, scale, y, parts, counted, m, n, k, group, groups,
        *x.stride(), *weight.stride(), *scale.stride(), 1.0,
        SCALED=plan.scaled, EVEN=even, GROUPS=plan.block_k // group if of_tile else 1,
        BLOCK_M=plan.block_m, BLOCK_N=plan.block_n, BLOCK_K=plan.block_k, SPLIT_K=splits, STAGES=plan.stages,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return y
