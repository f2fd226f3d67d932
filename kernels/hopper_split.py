"""Products and distances of matrices in halves (see ``kernels.fp16_split``) on Hopper GPUs, in Gluon.

Warps are specialized, as ``kernels.hopper_pipeline`` describes, and a ring holds tiles of both operands. Half a tile of
y takes 64 registers of each thread of its warpgroup. The partial sums from the tensor cores take another 64, until
float32 instructions add them to y.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .fp16_split import Halves
from .hopper_pipeline import barriers, leave, place, room, root, wait_empty, wait_full
from .triton_device import multiprocessors
from .triton_launch import repeatable

ROWS = gl.constexpr(128)  # rows of a tile of y
OWN = gl.constexpr(64)  # rows of a warpgroup's half of it
COLS = gl.constexpr(128)
# The layout of half a tile in the registers of a warpgroup, as tensor cores write it.
LAYOUT = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16]))
# Registers of a thread: at the start of the kernel, then in a warpgroup that multiplies, and in the loader.
REGISTERS = gl.constexpr(168)
MULTIPLY = gl.constexpr(240)
LOAD = gl.constexpr(24)


@gluon.jit
def product(a_hi, a_lo, b_hi, b_lo, zero, ALL: gl.constexpr):
    """Start the product of ``tensor_cores.product``, with b as [depth, columns]. It is asynchronous."""
    if ALL:
        part = warpgroup_mma(a_lo, b_lo, zero, use_acc=False, is_async=True)
        part = warpgroup_mma(a_hi, b_lo, part, is_async=True)
    else:
        part = warpgroup_mma(a_hi, b_lo, zero, use_acc=False, is_async=True)
    part = warpgroup_mma(a_lo, b_hi, part, is_async=True)
    return warpgroup_mma(a_hi, b_hi, part, is_async=True)


@gluon.jit
def of_rows(x, row, n):
    """Load the elements of ``x`` for the rows of a half tile, [OWN, 1]."""
    rows = row + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT))
    return gl.expand_dims(gl.load(x + rows, mask=rows < n, other=0.0), 1)


@gluon.jit
def of_cols(x, col, m):
    """Load the elements of ``x`` for the columns of a tile, [1, COLS]."""
    cols = col + gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
    return gl.expand_dims(gl.load(x + cols, mask=cols < m, other=0.0), 0)


@gluon.jit
def distances(dots, a_norm, a_scale, b_norm, b_scale):
    """Compute the distances of a half tile from norms [OWN, 1] and [1, COLS] and scaled products."""
    # In this order, since the intermediate sum that is rounded is then smaller than a sum of the norms.
    return root((a_norm - dots * b_scale * (2 * a_scale)) + b_norm)


@gluon.jit
def _store(y, tile, row, col, n, m):
    """Store the part of a half tile that lies inside y [n, m]."""
    rows = row + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, COLS, gl.SliceLayout(0, LAYOUT))
    inside = gl.expand_dims(rows < n, 1) & gl.expand_dims(cols < m, 0)
    gl.store(y + gl.expand_dims(rows.to(gl.int64) * m, 1) + gl.expand_dims(cols, 0), tile, mask=inside)


@gluon.jit
def _load_ring(
    a, b, a_ring, b_ring, full, empty, a_lo, b_lo, row_tiles, col_tiles, width,
    B_COLUMNS: gl.constexpr, DEPTH: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    step = 0
    for index in range(gl.program_id(0), row_tiles * col_tiles, gl.num_programs(0)):
        i, j = place(index, row_tiles, col_tiles, GROUP)
        for k in range(0, width, DEPTH):
            slot = step % SLOTS
            came = full.index(slot)
            wait_empty(empty, step, SLOTS)
            mbarrier.expect(came, 2 * (a.block_type.nbytes + b.block_type.nbytes))
            tma.async_copy_global_to_shared(a, [i * ROWS, k], came, a_ring.index(2 * slot))
            tma.async_copy_global_to_shared(a, [i * ROWS + a_lo, k], came, a_ring.index(2 * slot + 1))
            if B_COLUMNS:
                tma.async_copy_global_to_shared(b, [k, j * COLS], came, b_ring.index(2 * slot))
                tma.async_copy_global_to_shared(b, [k + b_lo, j * COLS], came, b_ring.index(2 * slot + 1))
            else:
                tma.async_copy_global_to_shared(b, [j * COLS, k], came, b_ring.index(2 * slot))
                tma.async_copy_global_to_shared(b, [j * COLS + b_lo, k], came, b_ring.index(2 * slot + 1))
            step += 1


@gluon.jit
def _multiply_ring(
    y, a_ring, b_ring, full, empty, a_norms, a_scales, b_norms, b_scales, n, m, row_tiles, col_tiles, width, one,
    HALF: gl.constexpr, DISTANCES: gl.constexpr, B_COLUMNS: gl.constexpr, ALL: gl.constexpr,
    DEPTH: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    zero = gl.zeros((OWN, COLS), gl.float32, LAYOUT)
    step = 0
    for index in range(gl.program_id(0), row_tiles * col_tiles, gl.num_programs(0)):
        i, j = place(index, row_tiles, col_tiles, GROUP)
        row = i * ROWS + HALF * OWN
        col = j * COLS
        dots = zero
        for _ in range(0, width, DEPTH):
            slot = step % SLOTS
            wait_full(full, step, SLOTS)
            a_hi = a_ring.index(2 * slot).slice(HALF * OWN, OWN)
            a_low = a_ring.index(2 * slot + 1).slice(HALF * OWN, OWN)
            b_hi = b_ring.index(2 * slot)
            b_low = b_ring.index(2 * slot + 1)
            if not B_COLUMNS:
                b_hi = b_hi.permute((1, 0))
                b_low = b_low.permute((1, 0))
            part = warpgroup_mma_wait(0, deps=[product(a_hi, a_low, b_hi, b_low, zero, ALL)])
            leave(empty, step, SLOTS)
            dots = gl.fma(part, one, dots)  # see tensor_cores.promote
            step += 1
        a_scale = of_rows(a_scales, row, n)
        b_scale = of_cols(b_scales, col, m)
        if DISTANCES:
            a_norm = of_rows(a_norms, row, n)
            b_norm = of_cols(b_norms, col, m)
            tile = distances(dots, a_norm, a_scale, b_norm, b_scale)
        else:
            # The smaller factor first, or a huge row times a tiny column would overflow in between.
            tile = dots * gl.minimum(a_scale, b_scale) * gl.maximum(a_scale, b_scale)
        _store(y, tile, row, col, n, m)


@gluon.jit
def _ring(
    a, b, y, a_norms, a_scales, b_norms, b_scales, n, m, a_lo, b_lo, width, one,
    DISTANCES: gl.constexpr, B_COLUMNS: gl.constexpr, ALL: gl.constexpr, DEPTH: gl.constexpr, GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
):  # fmt: skip
    a_ring = room(a, 2 * SLOTS)  # hi and lo of each slot
    b_ring = room(b, 2 * SLOTS)
    full = barriers(SLOTS, 1)
    empty = barriers(SLOTS, 2)
    fence_async_shared()
    row_tiles = gl.cdiv(n, ROWS)
    col_tiles = gl.cdiv(m, COLS)
    gl.warp_specialize(
        [
            (_multiply_ring, (
                y, a_ring, b_ring, full, empty, a_norms, a_scales, b_norms, b_scales, n, m, row_tiles, col_tiles,
                width, one, 0, DISTANCES, B_COLUMNS, ALL, DEPTH, GROUP, SLOTS,
            )),
            (_multiply_ring, (
                y, a_ring, b_ring, full, empty, a_norms, a_scales, b_norms, b_scales, n, m, row_tiles, col_tiles,
                width, one, 1, DISTANCES, B_COLUMNS, ALL, DEPTH, GROUP, SLOTS,
            )),
            (_load_ring, (
                a, b, a_ring, b_ring, full, empty, a_lo, b_lo, row_tiles, col_tiles, width,
                B_COLUMNS, DEPTH, GROUP, SLOTS,
            )),
        ],
        [4, 1],
        [MULTIPLY, LOAD],
    )  # fmt: skip


def tiles_of(x: Tensor, rows: int, cols: int) -> Any:
    """Return a descriptor that copies rows x cols tiles of the contiguous ``x``."""
    element = gl.float16 if x.dtype == torch.float16 else gl.float32
    return TensorDescriptor.from_tensor(x, [rows, cols], gl.NVMMASharedLayout.get_default_for([rows, cols], element))


def ring(
    a: Halves, b: Halves, y: Tensor, *, distances: bool, b_columns: bool, all_products: bool, depth: int, slots: int,
    group: int,
) -> object:  # fmt: skip
    """Write distances between the rows of ``a`` and ``b``, or a product, into y [n, m] float32.

    Args:
        a: split by rows.
        b: split by rows, or by columns.
        y: the result, contiguous.
        distances: compute distances; else the product.
        b_columns: ``b`` is split by columns.
        all_products: compute lo lo as well.
        depth: terms that a tensor core adds before float32 arithmetic adds the sums.
        slots: tiles in flight.
        group: rows of tiles that are visited together.

    Returns:
        The compiled kernel.

    """
    n, m = y.shape
    b_box = (depth, COLS.value) if b_columns else (COLS.value, depth)
    tiles = triton.cdiv(n, ROWS.value) * triton.cdiv(m, COLS.value)
    return repeatable(_ring)[(min(tiles, multiprocessors(y)),)](
        tiles_of(a.data, ROWS.value, depth), tiles_of(b.data, *b_box), y,
        a.norms, a.scales, b.norms, b.scales, n, m, a.lo, b.lo, a.data.shape[1], 1.0,
        DISTANCES=distances, B_COLUMNS=b_columns, ALL=all_products, DEPTH=depth, GROUP=group,
        SLOTS=slots, num_warps=4, maxnreg=REGISTERS.value,
    )  # fmt: skip
