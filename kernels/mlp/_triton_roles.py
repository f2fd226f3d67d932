"""Products of an MLP in Gluon, for Hopper: what an MLP does after a product runs beside the next tile's.

One warp loads tiles of both operands into a ring in shared memory. Two warpgroups multiply what it loads, half of a
tile's rows each. What is to be done to a complete tile, bias, activation and its derivative, or a derivative times it,
is done in eighths, each beside a step of the next tile.

For whole tiles only: no part of this looks for an edge.
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

from kernels.hopper_pipeline import part_of, place

BLOCK_M, BLOCK_N, BLOCK_K = gl.constexpr(128), gl.constexpr(256), gl.constexpr(64)
HALF_M = gl.constexpr(64)  # of a tile's rows: a warpgroup's
STAGES = gl.constexpr(4)
GROUP_M = gl.constexpr(8)
PARTS = gl.constexpr(8)  # that a tile is finished in, beside as many steps
COLS = gl.constexpr(32)  # of each
BUFFERS = gl.constexpr(4)  # that they are stored through
MULTIPLYING, LOADING, AT_FIRST = gl.constexpr(240), gl.constexpr(24), 168  # registers of a thread


@gluon.jit
def _place(tile, tiles_m, tiles_n):
    row, col = place(tile, tiles_m, tiles_n, GROUP_M)
    return row * BLOCK_M, col * BLOCK_N


@gluon.jit
def _load(a, b, ring, counts, FORWARD: gl.constexpr, WEIGHT: gl.constexpr):
    a_ring, b_ring, full, empty = ring
    tiles_m, tiles_n, steps = counts
    count = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n)
        for step in range(steps):
            slot = count % STAGES
            ready = full.index(slot)
            # A phase that has not begun counts as complete if it is odd: the first turn of the ring waits for nobody.
            mbarrier.wait(empty.index(slot), (count // STAGES & 1) ^ 1)
            mbarrier.expect(ready, 2 * a.block_type.nbytes + b.block_type.nbytes)
            for half in gl.static_range(2):
                a_tile, top = a_ring.index(2 * slot + half), row + half * HALF_M
                if WEIGHT:
                    tma.async_copy_global_to_shared(a, [step * BLOCK_K, top], ready, a_tile)
                else:
                    tma.async_copy_global_to_shared(a, [top, step * BLOCK_K], ready, a_tile)
            if FORWARD:
                tma.async_copy_global_to_shared(b, [col, step * BLOCK_K], ready, b_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(b, [step * BLOCK_K, col], ready, b_ring.index(slot))
            count += 1


@gluon.jit
def _step(z, add, count, ring, HALF: gl.constexpr, FORWARD: gl.constexpr, WEIGHT: gl.constexpr):
    a_ring, b_ring, full, empty = ring
    slot = count % STAGES
    left, right = a_ring.index(2 * slot + HALF), b_ring.index(slot)
    if WEIGHT:
        left = left.permute((1, 0))
    if FORWARD:
        right = right.permute((1, 0))
    mbarrier.wait(full.index(slot), count // STAGES & 1)
    z = warpgroup_mma(left, right, z, use_acc=add, is_async=True)
    z = warpgroup_mma_wait(1, deps=[z])  # the product of the step before is complete: its tiles are free
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), count=1, pred=add)
    return z


@gluon.jit
def _store(matrix, buffers, tile, row, col, BUFFER: gl.constexpr):
    buffer = buffers.index(BUFFER % BUFFERS)
    tma.store_wait(BUFFERS - 1)  # what was stored from this buffer before has been read
    buffer.store(tile.to(matrix.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(matrix, [row, col], buffer)


@gluon.jit
def activation_and_slope(z, RELU: gl.constexpr):
    """As in ``_triton_products``, for what is rounded to 16 bits."""
    if RELU:
        y = gl.where(z <= 0, 0.0, z)
        slope = y
    else:
        a = gl.abs(z)
        log2 = -9.34124705e-07 * a + 4.38753642e-05
        log2 = log2 * a - 0.000802732605
        log2 = log2 * a + 0.00808682991
        log2 = log2 * a - 0.053305934
        log2 = log2 * a - 0.458911986
        log2 = log2 * a - 1.15114395
        log2 = log2 * a - 0.999999214
        tail = gl.exp2(log2)
        p = gl.where(z < 0, tail, 1 - tail)
        y = z * p
        slope = p + z * gl.exp2(z * z * -0.7213475204444817 - 1.3257480647361592)
    return y, slope


@gluon.jit
def _before(given, cols, row, col, PART: gl.constexpr, FORWARD: gl.constexpr, WEIGHT: gl.constexpr):
    """What finishing a part needs from memory: asked for a step before, since it is some way off."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    j = col + PART * COLS + gl.arange(0, COLS, gl.SliceLayout(0, layout))
    if WEIGHT:
        return col
    elif FORWARD:
        return gl.load(given + j)
    else:
        i = gl.arange(0, HALF_M, gl.SliceLayout(1, layout))  # and the first row apart: fewer numbers of 64 bits
        return gl.load(given + row.to(gl.int64) * cols + (gl.expand_dims(i * cols, 1) + gl.expand_dims(j, 0)))


@gluon.jit
def _finish(
    done,
    given,  # bias, or slope
    out,
    slope,
    sums,
    buffers,
    cols,
    row,
    col,
    PART: gl.constexpr,
    FORWARD: gl.constexpr,
    WEIGHT: gl.constexpr,
    RELU: gl.constexpr,
    KEEP: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    z = part_of(done, PART, PARTS).to(gl.float32)
    at = col + PART * COLS
    if WEIGHT:
        _store(out, buffers, z, row, at, PART)
    elif FORWARD:
        y, d = activation_and_slope(z + gl.expand_dims(given.to(gl.float32), 0), RELU)
        if KEEP:
            _store(slope, buffers, d, row, at, 2 * PART)
            _store(out, buffers, y, row, at, 2 * PART + 1)
        else:
            _store(out, buffers, y, row, at, PART)
    else:
        dz = gl.where(given <= 0, 0.0, z) if RELU else z * given.to(gl.float32)
        _store(out, buffers, dz, row, at, PART)
        j = at + gl.arange(0, COLS, gl.SliceLayout(0, layout))
        gl.store(sums + (row // HALF_M).to(gl.int64) * cols + j, gl.sum(dz, axis=0))


@gluon.jit
def _multiply(
    out,
    slope,
    given,
    sums,
    buffers,
    ring,
    ahead,
    counts,
    cols,
    HALF: gl.constexpr,
    FORWARD: gl.constexpr,
    WEIGHT: gl.constexpr,
    RELU: gl.constexpr,
    KEEP: gl.constexpr,
):
    tiles_m, tiles_n, steps = counts
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    z = gl.zeros((HALF_M, BLOCK_N), gl.float32, layout)
    done = gl.zeros((HALF_M, BLOCK_N), out.dtype, layout)  # the tile before this one, which is yet to be finished
    done_row = gl.to_tensor(0)
    done_col = gl.to_tensor(0)
    count = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n)
        if HALF == 1:
            mbarrier.wait(ahead, turn & 1)
        for part in gl.static_range(PARTS):
            # In the first turn these are of the first tile, and of nothing that is kept: so no branch is needed here.
            needed = _before(given, cols, done_row + HALF * HALF_M, done_col, part, FORWARD, WEIGHT)
            z = _step(z, gl.to_tensor(part > 0), count, ring, HALF, FORWARD, WEIGHT)
            if HALF == 0 and part == 0:
                mbarrier.arrive(ahead, count=1)
            count += 1
            if turn > 0:
                _finish(
                    done, needed, out, slope, sums, buffers, cols, done_row + HALF * HALF_M, done_col, part, FORWARD,
                    WEIGHT, RELU, KEEP,
                )  # fmt: skip
        for _ in range(PARTS, steps):
            z = _step(z, gl.to_tensor(True), count, ring, HALF, FORWARD, WEIGHT)
            count += 1
        z = warpgroup_mma_wait(0, deps=[z])
        mbarrier.arrive(ring[3].index((count + STAGES - 1) % STAGES), count=1)
        done = z.to(out.dtype)
        done_row, done_col = row, col
        turn += 1
    if turn > 0:
        for part in gl.static_range(PARTS):
            needed = _before(given, cols, done_row + HALF * HALF_M, done_col, part, FORWARD, WEIGHT)
            _finish(
                done, needed, out, slope, sums, buffers, cols, done_row + HALF * HALF_M, done_col, part, FORWARD,
                WEIGHT, RELU, KEEP,
            )  # fmt: skip
    tma.store_wait(0)  # this shared memory is another program's once this one has ended


@gluon.jit(do_not_specialize=["rows", "depth"])
def product(
    a,
    b,
    out,
    slope,
    given,  # forward, the bias; backward, the slope
    sums,
    rows,
    cols,
    depth,
    FORWARD: gl.constexpr,
    WEIGHT: gl.constexpr,
    RELU: gl.constexpr,
    KEEP: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES] + a.block_type.shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    first = gl.allocate_shared_memory(out.dtype, [BUFFERS] + out.block_type.shape, out.layout)
    second = gl.allocate_shared_memory(out.dtype, [BUFFERS] + out.block_type.shape, out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ahead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    mbarrier.init(ahead, count=1)
    fence_async_shared()  # what loads tiles sees the barriers
    ring = (a_ring, b_ring, full, empty)
    counts = (rows // BLOCK_M, cols // BLOCK_N, depth // BLOCK_K)
    gl.warp_specialize(
        [
            (_multiply, (out, slope, given, sums, first, ring, ahead, counts, cols, 0, FORWARD, WEIGHT, RELU, KEEP)),
            (_multiply, (out, slope, given, sums, second, ring, ahead, counts, cols, 1, FORWARD, WEIGHT, RELU, KEEP)),
            (_load, (a, b, ring, counts, FORWARD, WEIGHT)),
        ],
        [4, 1],
        [MULTIPLYING, LOADING],
    )
