"""A matrix product for Hopper in Gluon with specialized warps. ``_configurations.py`` decides when it is used.

One warp loads tiles of a and b into a ring in shared memory, for one tile of y after another, and never waits for the
store of y. Two warpgroups multiply these tiles. Each computes half of the rows of a tile of y, so that b is loaded once
for both. They store y during the next tile: a quarter of its columns in each of the first steps. Delaying the second
warpgroup by a step, so that one multiplies while the other changes tiles, gives no further gain: it is 0.5 % slower
over twelve products on an H200.

The accelerator stores y if its rows are aligned to 16 bytes. If not, threads store the parts, from shared memory, where
neighbouring threads find neighbouring columns.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..hopper_pipeline import part_of, place

# Registers of a thread: in the warps that multiply (the sum of a tile, and the last tile that is being stored), in the
# warp that loads, and in all warps at the start of the kernel.
MULTIPLYING, LOADING, AT_FIRST = gl.constexpr(240), gl.constexpr(24), 168
PARTS = gl.constexpr(4)  # parts in which a tile of y is stored
BUFFERS = gl.constexpr(2)  # buffers for these parts


@gluon.jit
def _load(
    a,
    b,
    ring,
    counts,
    A_ALONG_K: gl.constexpr,
    B_ALONG_K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
):
    a_ring, b_ring, full, empty = ring
    tiles_m, tiles_n, blocks = counts
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = place(tile, tiles_m, tiles_n, GROUP_M)
        for block in range(blocks):
            slot = step % STAGES
            ready = full.index(slot)
            # A new barrier counts as complete at odd parity, so the first round of the ring does not wait.
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(ready, 2 * a.block_type.nbytes + b.block_type.nbytes)
            for half in gl.static_range(2):
                a_tile = a_ring.index(2 * slot + half)
                top = row * BLOCK_M + half * (BLOCK_M // 2)
                if A_ALONG_K:
                    tma.async_copy_global_to_shared(a, [top, block * BLOCK_K], ready, a_tile)
                else:
                    tma.async_copy_global_to_shared(a, [block * BLOCK_K, top], ready, a_tile)
            if B_ALONG_K:
                tma.async_copy_global_to_shared(b, [col * BLOCK_N, block * BLOCK_K], ready, b_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(b, [block * BLOCK_K, col * BLOCK_N], ready, b_ring.index(slot))
            step += 1


@gluon.jit
def _step(
    acc,
    add,  # add to acc, else overwrite it
    step,
    ring,
    HALF: gl.constexpr,
    A_ALONG_K: gl.constexpr,
    B_ALONG_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    a_ring, b_ring, full, empty = ring
    slot = step % STAGES
    a_tile = a_ring.index(2 * slot + HALF)
    b_tile = b_ring.index(slot)
    if not A_ALONG_K:
        a_tile = a_tile.permute((1, 0))
    if B_ALONG_K:
        b_tile = b_tile.permute((1, 0))
    mbarrier.wait(full.index(slot), step // STAGES & 1)
    acc = warpgroup_mma(a_tile, b_tile, acc, use_acc=add, is_async=True)
    acc = warpgroup_mma_wait(1, deps=[acc])  # the product of the previous step is complete, so its tiles are free
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=add)
    return acc


@gluon.jit
def _store(y, y_ptr, m, n, out, tile, row, col, PART: gl.constexpr):
    part = part_of(tile, PART, PARTS)
    buffer = out.index(PART % BUFFERS)
    col += PART * part.shape[1]
    if y is not None:
        tma.store_wait(BUFFERS - 1)  # the previous store from this buffer has read it
        buffer.store(part)
        fence_async_shared()
        tma.async_copy_shared_to_global(y, [row, col], buffer)
    else:
        buffer.store(part)
        layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        rows = row + gl.arange(0, part.shape[0], gl.SliceLayout(1, layout))
        cols = col + gl.arange(0, part.shape[1], gl.SliceLayout(0, layout))
        at = rows.to(gl.int64)[:, None] * n + cols[None, :]
        gl.store(y_ptr + at, buffer.load(layout), mask=(rows < m)[:, None] & (cols < n)[None, :])


@gluon.jit
def _multiply(
    y,
    y_ptr,
    m,
    n,
    out,
    ring,
    scale_a_ptr,
    scale_b_ptr,
    counts,
    HALF: gl.constexpr,  # which half of a tile's rows
    A_ALONG_K: gl.constexpr,
    B_ALONG_K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
):
    tiles_m, tiles_n, blocks = counts
    rows: gl.constexpr = BLOCK_M // 2
    depth: gl.constexpr = 256 // ring[0].dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, depth])
    acc = gl.zeros((rows, BLOCK_N), gl.float32, layout)
    done = gl.zeros((rows, BLOCK_N), out.dtype, layout)  # the previous tile, which is not stored yet
    done_row = 0
    done_col = 0
    step = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = place(tile, tiles_m, tiles_n, GROUP_M)
        for part in gl.static_range(PARTS):
            acc = _step(acc, gl.to_tensor(part > 0), step, ring, HALF, A_ALONG_K, B_ALONG_K, STAGES)
            step += 1
            if turn > 0:
                _store(y, y_ptr, m, n, out, done, done_row, done_col, part)
        for _ in range(PARTS, blocks):
            acc = _step(acc, gl.to_tensor(True), step, ring, HALF, A_ALONG_K, B_ALONG_K, STAGES)
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(ring[3].index((step + STAGES - 1) % STAGES), count=1)
        result = acc
        if scale_a_ptr is not None:
            result *= gl.load(scale_a_ptr)
        if scale_b_ptr is not None:
            result *= gl.load(scale_b_ptr)
        done = result.to(out.dtype)
        done_row = row * BLOCK_M + HALF * rows
        done_col = col * BLOCK_N
        turn += 1
    if turn > 0:
        for part in gl.static_range(PARTS):
            _store(y, y_ptr, m, n, out, done, done_row, done_col, part)
    if y is not None:
        tma.store_wait(0)  # the shared memory belongs to another program after this one ends


@gluon.jit(do_not_specialize=["m", "n", "k"])
def matmul_roles(
    a,  # descriptor of half the rows of a tile
    b,
    y,  # descriptor of half the rows and a quarter of the columns of a tile; None: its rows are not aligned
    y_ptr,
    scale_a_ptr,
    scale_b_ptr,
    m,
    n,
    k,
    A_ALONG_K: gl.constexpr,  # the descriptor of a is [m, k], else [k, m]; that of b is [n, k], else [k, n]
    B_ALONG_K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,  # at most the number of blocks of k, or phases of a barrier would be ambiguous
):
    """Multiply a [m, k] by b [k, n] on Hopper: one warp loads tiles, and two warpgroups multiply.

    Sums are float32. ``scale_a_ptr`` and ``scale_b_ptr`` point to one float32 each, or are None.
    """
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES] + a.block_type.shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    stored: gl.constexpr = y_ptr.dtype.element_ty
    part: gl.constexpr = [BLOCK_M // 2, BLOCK_N // PARTS]
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(part, stored)
    first_out = gl.allocate_shared_memory(stored, [BUFFERS] + part, out_layout)
    second_out = gl.allocate_shared_memory(stored, [BUFFERS] + part, out_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()  # so that the accelerator sees the barriers
    ring = (a_ring, b_ring, full, empty)
    counts = (gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N), gl.cdiv(k, BLOCK_K))
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    y,
                    y_ptr,
                    m,
                    n,
                    first_out,
                    ring,
                    scale_a_ptr,
                    scale_b_ptr,
                    counts,
                    0,
                    A_ALONG_K,
                    B_ALONG_K,
                    BLOCK_M,
                    BLOCK_N,
                    GROUP_M,
                    STAGES,
                ),
            ),
            (
                _multiply,
                (
                    y,
                    y_ptr,
                    m,
                    n,
                    second_out,
                    ring,
                    scale_a_ptr,
                    scale_b_ptr,
                    counts,
                    1,
                    A_ALONG_K,
                    B_ALONG_K,
                    BLOCK_M,
                    BLOCK_N,
                    GROUP_M,
                    STAGES,
                ),
            ),
            (_load, (a, b, ring, counts, A_ALONG_K, B_ALONG_K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
        ],
        [4, 1],
        [MULTIPLYING, LOADING],
    )
