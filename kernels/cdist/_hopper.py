"""Distances of points with few coordinates on Hopper GPUs, in Gluon.

Reading operands and writing y cost as much as the products here. So a program keeps a tile of a while it reads tiles of
b, and stores y through shared memory while it computes the next tile. Warps are specialized (see
``kernels.hopper_pipeline``). There is one program for each multiprocessor, and all have about the same number of tiles,
so that any number of points keeps all of them busy.
"""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from ..fp16_split import Halves
from ..hopper_pipeline import barriers, leave, room, row_of_tiles, shares, wait_empty, wait_full
from ..hopper_split import (
    COLS,
    LAYOUT,
    LOAD,
    MULTIPLY,
    OWN,
    REGISTERS,
    ROWS,
    distances,
    of_cols,
    of_rows,
    product,
    tiles_of,
)
from ..triton_device import multiprocessors
from ..triton_launch import repeatable


@gluon.jit
def _load_stay(
    a, b, a_stay, b_ring, a_full, a_empty, full, empty, a_lo, b_lo, row_tiles, col_tiles,
    DEPTH: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    program = gl.program_id(0)
    total, whole, begin = shares(program, gl.num_programs(0), row_tiles, col_tiles)
    at = 0
    turn = 0
    step = 0
    while at < total:
        i, first, count = row_of_tiles(at, total, whole, begin, program, gl.num_programs(0), col_tiles)
        came = a_full.index(0)
        wait_empty(a_empty, turn, 1)
        mbarrier.expect(came, 2 * PARTS * a.block_type.nbytes)
        for part in gl.static_range(PARTS):
            tma.async_copy_global_to_shared(a, [i * ROWS, part * DEPTH], came, a_stay.index(2 * part))
            tma.async_copy_global_to_shared(a, [i * ROWS + a_lo, part * DEPTH], came, a_stay.index(2 * part + 1))
        for j in range(first, first + count):
            slot = step % SLOTS * 2 * PARTS
            came = full.index(step % SLOTS)
            wait_empty(empty, step, SLOTS)
            mbarrier.expect(came, 2 * PARTS * b.block_type.nbytes)
            for part in gl.static_range(PARTS):
                tma.async_copy_global_to_shared(b, [j * COLS, part * DEPTH], came, b_ring.index(slot + 2 * part))
                tma.async_copy_global_to_shared(
                    b, [j * COLS + b_lo, part * DEPTH], came, b_ring.index(slot + 2 * part + 1)
                )
            step += 1
        at += count
        turn += 1


@gluon.jit
def _part(a_stay, b_ring, slot, part: gl.constexpr, zero, HALF: gl.constexpr, ALL: gl.constexpr):
    a_hi = a_stay.index(2 * part).slice(HALF * OWN, OWN)
    a_low = a_stay.index(2 * part + 1).slice(HALF * OWN, OWN)
    b_hi = b_ring.index(slot + 2 * part).permute((1, 0))
    b_low = b_ring.index(slot + 2 * part + 1).permute((1, 0))
    return product(a_hi, a_low, b_hi, b_low, zero, ALL)


@gluon.jit
def _multiply_stay(
    y, out, a_stay, b_ring, a_full, a_empty, full, empty, a_norms, a_scales, b_norms, b_scales, n, m,
    row_tiles, col_tiles, one,
    HALF: gl.constexpr, ALL: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    zero = gl.zeros((OWN, COLS), gl.float32, LAYOUT)
    program = gl.program_id(0)
    total, whole, begin = shares(program, gl.num_programs(0), row_tiles, col_tiles)
    at = 0
    turn = 0
    step = 0
    while at < total:
        i, first, count = row_of_tiles(at, total, whole, begin, program, gl.num_programs(0), col_tiles)
        row = i * ROWS + HALF * OWN
        a_scale = of_rows(a_scales, row, n)
        a_norm = of_rows(a_norms, row, n)
        wait_full(a_full, turn, 1)
        for j in range(first, first + count):
            b_scale = of_cols(b_scales, j * COLS, m)
            b_norm = of_cols(b_norms, j * COLS, m)
            slot = step % SLOTS * 2 * PARTS
            wait_full(full, step, SLOTS)
            dots = _part(a_stay, b_ring, slot, 0, zero, HALF, ALL)
            if PARTS == 2:
                more = _part(a_stay, b_ring, slot, 1, zero, HALF, ALL)
                dots, more = warpgroup_mma_wait(0, deps=[dots, more])
                dots = gl.fma(dots, one, more)  # see tensor_cores.promote
            else:
                dots = warpgroup_mma_wait(0, deps=[dots])
            leave(empty, step, SLOTS)
            tile = distances(dots, a_norm, a_scale, b_norm, b_scale)
            tma.store_wait(0)  # the buffer's previous tile has been read
            out.index(HALF).store(tile)
            fence_async_shared()
            tma.async_copy_shared_to_global(y, [row, j * COLS], out.index(HALF))
            step += 1
        leave(a_empty, turn, 1)
        at += count
        turn += 1
    tma.store_wait(0)  # the shared memory belongs to another program after this one ends


@gluon.jit
def _stay(
    a, b, y, a_norms, a_scales, b_norms, b_scales, n, m, a_lo, b_lo, one,
    ALL: gl.constexpr, DEPTH: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    a_stay = room(a, 2 * PARTS)  # hi and lo of each part of the coordinates
    b_ring = room(b, 2 * PARTS * SLOTS)
    out = room(y, 2)  # one for each warpgroup
    a_full = barriers(1, 1)
    a_empty = barriers(1, 2)
    full = barriers(SLOTS, 1)
    empty = barriers(SLOTS, 2)
    fence_async_shared()
    row_tiles = gl.cdiv(n, ROWS)
    col_tiles = gl.cdiv(m, COLS)
    gl.warp_specialize(
        [
            (_multiply_stay, (
                y, out, a_stay, b_ring, a_full, a_empty, full, empty, a_norms, a_scales, b_norms, b_scales, n, m,
                row_tiles, col_tiles, one, 0, ALL, PARTS, SLOTS,
            )),
            (_multiply_stay, (
                y, out, a_stay, b_ring, a_full, a_empty, full, empty, a_norms, a_scales, b_norms, b_scales, n, m,
                row_tiles, col_tiles, one, 1, ALL, PARTS, SLOTS,
            )),
            (_load_stay, (
                a, b, a_stay, b_ring, a_full, a_empty, full, empty, a_lo, b_lo, row_tiles, col_tiles,
                DEPTH, PARTS, SLOTS,
            )),
        ],
        [4, 1],
        [MULTIPLY, LOAD],
    )  # fmt: skip


def stay(a: Halves, b: Halves, y: Tensor, *, all_products: bool, depth: int, slots: int) -> object:
    """Write the distances between rows of ``depth`` or 2 ``depth`` coordinates into y [n, m] float32.

    Args:
        a: points, split.
        b: points, split.
        y: the result, contiguous; m is a multiple of 4, since a descriptor stores it.
        all_products: compute lo lo as well.
        depth: coordinates that a tensor core adds before float32 arithmetic adds the sums.
        slots: tiles of b in flight.

    Returns:
        The compiled kernel.

    """
    n, m = y.shape
    tiles = triton.cdiv(n, ROWS.value) * triton.cdiv(m, COLS.value)
    return repeatable(_stay)[(min(tiles, multiprocessors(y)),)](
        tiles_of(a.data, ROWS.value, depth), tiles_of(b.data, COLS.value, depth),
        tiles_of(y, OWN.value, COLS.value),
        a.norms, a.scales, b.norms, b.scales, n, m, a.lo, b.lo, 1.0,
        ALL=all_products, DEPTH=depth, PARTS=a.data.shape[1] // depth, SLOTS=slots,
        num_warps=4, maxnreg=REGISTERS.value,
    )  # fmt: skip
