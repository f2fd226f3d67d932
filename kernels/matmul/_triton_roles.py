"""A matrix product for Hopper in Gluon with specialized warps. ``_configurations.py`` decides when it is used.

One warp loads tiles of a and b into a ring in shared memory, for one tile of y after another, and never waits for the
store of y. Two warpgroups multiply these tiles. Each computes half of the rows of a tile of y, so that b is loaded once
for both. They store y during the next whole tile: WIDTH of its columns in each of the first steps. Delaying the second
warpgroup by a step, so that one multiplies while the other changes tiles, gives no further gain: it is 0.5 % slower
over twelve products on an H200.

Where tiles fill their last wave badly, all programs share the tiles of that wave, as ``share_tiles`` of
``_configurations.py`` says (after stream-k: Osama et al. 2023, arXiv:2301.03598): each program computes a part of the
sums of a tile, of some blocks along k. The program that has part 0 waits for the other parts, adds them and stores y.

Tensors have powers of 2 as shapes. So a tile of 192 columns is one of 128 beside one of 64, the rest.

The accelerator stores y if its rows are aligned to 16 bytes. If not, threads store the parts, from shared memory, where
neighbouring threads find neighbouring columns. That takes longer than a step, so these parts are smaller.
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

from ..hopper_pipeline import part_of, place, room

# Registers of a thread: in the warps that multiply (the sum of a tile, and the last tile that is being stored), in the
# warp that loads, and in all warps at the start of the kernel.
MULTIPLYING, LOADING, AT_FIRST = gl.constexpr(240), gl.constexpr(24), 168
FLAGS = gl.constexpr(256)  # of a part of a tile: one for each thread that multiplies
# Set a flag when what this thread has stored before is visible; wait for a flag, and clear it.
RELEASE = gl.constexpr("{ .reg .b32 one; mov.b32 one, 1; st.release.gpu.global.b32 [$1], one; mov.b32 $0, one; }")
ACQUIRE = gl.constexpr("""{
    .reg .pred waits; .reg .b32 seen;
    again: ld.acquire.gpu.global.b32 seen, [$1]; setp.eq.b32 waits, seen, 0; @waits bra again;
    mov.b32 $0, 0; st.global.b32 [$1], $0;
}""")


@gluon.jit
def _whole(tiles, SHARED: gl.constexpr):
    """Return how many tiles, the first ones, are computed by one program each."""
    if SHARED:
        return tiles // gl.num_programs(0) * gl.num_programs(0)
    else:
        return tiles


@gluon.jit
def _share(tiles, blocks, depth, each):
    """Return what this program computes of the ``tiles`` that all programs share.

    Returns:
        The number of its part of their sums; its first block along k, and the end of its blocks; its first tile, and
        the end of its tiles.

    """
    # Programs wait only if they have part 0, and those are the last ones. So if the GPU does not run all programs at
    # the same time, it starts those that they wait for first.
    parts = gl.num_programs(0) // tiles
    left = gl.num_programs(0) % tiles
    if gl.program_id(0) < left:
        part = parts
        first = gl.program_id(0) * each
        last = min(tiles, first + each)
    else:
        part = parts - 1 - (gl.program_id(0) - left) // tiles
        first = (gl.program_id(0) - left) % tiles
        last = first + 1
    if part * depth >= blocks:
        last = first
    return part, part * depth, min(blocks, part * depth + depth), first, last


@gluon.jit
def _load(
    a,
    b,
    b_rest,
    ring,
    counts,
    A_ALONG_K: gl.constexpr,
    B_ALONG_K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    REST: gl.constexpr,
    STAGES: gl.constexpr,
    SHARED: gl.constexpr,
):
    tiles_m, tiles_n, blocks, depth, each = counts
    whole = _whole(tiles_m * tiles_n, SHARED)
    step = 0
    for tile in range(gl.program_id(0), whole, gl.num_programs(0)):
        row, col = place(tile, tiles_m, tiles_n, GROUP_M)
        step = _load_tile(
            a, b, b_rest, ring, row, col, 0, blocks, step,
            A_ALONG_K, B_ALONG_K, BLOCK_M, BLOCK_N, BLOCK_K, REST, STAGES,
        )  # fmt: skip
    if SHARED:
        _, begin, end, first, last = _share(tiles_m * tiles_n - whole, blocks, depth, each)
        for tile in range(first, last):
            row, col = place(whole + tile, tiles_m, tiles_n, GROUP_M)
            step = _load_tile(
                a, b, b_rest, ring, row, col, begin, end, step,
                A_ALONG_K, B_ALONG_K, BLOCK_M, BLOCK_N, BLOCK_K, REST, STAGES,
            )  # fmt: skip


@gluon.jit
def _load_tile(
    a, b, b_rest, ring, row, col, begin, end, step,
    A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the blocks along k from ``begin`` to ``end`` for a tile of y, and return the next step."""
    a_ring, b_rings, full, empty = ring
    loaded: gl.constexpr = 2 * a.block_type.nbytes + b.block_type.nbytes  # bytes of a step
    for block in range(begin, end):
        slot = step % STAGES
        ready = full.index(slot)
        # A new barrier counts as complete at odd parity, so the first round of the ring does not wait.
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        mbarrier.expect(ready, loaded if b_rest is None else loaded + b_rest.block_type.nbytes)
        for half in gl.static_range(2):
            a_tile = a_ring.index(2 * slot + half)
            top = row * BLOCK_M + half * (BLOCK_M // 2)
            if A_ALONG_K:
                tma.async_copy_global_to_shared(a, [top, block * BLOCK_K], ready, a_tile)
            else:
                tma.async_copy_global_to_shared(a, [block * BLOCK_K, top], ready, a_tile)
        _load_columns(b, b_rings[0].index(slot), ready, col * BLOCK_N, block * BLOCK_K, B_ALONG_K)
        if b_rest is not None:
            left = (col + 1) * BLOCK_N - REST
            _load_columns(b_rest, b_rings[1].index(slot), ready, left, block * BLOCK_K, B_ALONG_K)
        step += 1
    return step


@gluon.jit
def _load_columns(b, tile, ready, col, k, B_ALONG_K: gl.constexpr):
    if B_ALONG_K:
        tma.async_copy_global_to_shared(b, [col, k], ready, tile)
    else:
        tma.async_copy_global_to_shared(b, [k, col], ready, tile)


@gluon.jit
def _step(
    sums,  # of a tile's columns; or of all but the rest, and of the rest
    add,  # add to sums, else overwrite them
    step,
    ring,
    HALF: gl.constexpr,
    A_ALONG_K: gl.constexpr,
    B_ALONG_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    a_ring, b_rings, full, empty = ring
    slot = step % STAGES
    a_tile = a_ring.index(2 * slot + HALF)
    if not A_ALONG_K:
        a_tile = a_tile.permute((1, 0))
    mbarrier.wait(full.index(slot), step // STAGES & 1)
    begun = ()
    for i in gl.static_range(len(sums)):
        b_tile = _columns(b_rings[i], slot, B_ALONG_K)
        begun += (warpgroup_mma(a_tile, b_tile, sums[i], use_acc=add, is_async=True),)  # type: ignore[assignment]
    # The products of the previous step are complete after the wait, so its tiles are free.
    done = _wait(len(sums), begun)
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=add)
    return done


@gluon.jit
def _wait(OUTSTANDING: gl.constexpr, sums):
    """Return ``sums`` when no more than OUTSTANDING products are under way."""
    if len(sums) == 1:
        return (warpgroup_mma_wait(OUTSTANDING, deps=[sums[0]]),)
    else:
        return warpgroup_mma_wait(OUTSTANDING, deps=sums)


@gluon.jit
def _complete(sums, step, empty, STAGES: gl.constexpr):
    """Return ``sums`` when all products have been added, and free the tiles of the last step."""
    done = _wait(0, sums)
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    return done


@gluon.jit
def _columns(tiles, slot, ALONG_K: gl.constexpr):
    tile = tiles.index(slot)
    return tile.permute((1, 0)) if ALONG_K else tile


@gluon.jit
def _store(
    y, y_ptr, m, n, out, done, row, col, PART: gl.constexpr, WIDTH: gl.constexpr, UNIT: gl.constexpr
):  # fmt: skip
    of: gl.constexpr = done[0].shape[1] // WIDTH
    source = done[PART // of]
    part = part_of(source, PART % of, source.shape[1] // WIDTH)
    buffers: gl.constexpr = out.shape[0]
    buffer = out.index(PART % buffers)
    col += PART * WIDTH
    if y is not None:
        tma.store_wait(buffers - 1)  # the previous store from this buffer has read it
        buffer.store(part)
        fence_async_shared()
        tma.async_copy_shared_to_global(y, [row, col], buffer)
    else:
        buffer.store(part)
        lanes: gl.constexpr = min(32, WIDTH // UNIT)  # of a warp that store one row
        # Neighbouring threads store neighbouring columns, UNIT each: n is a multiple of it, as the compiler is told.
        layout: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // lanes, lanes], [4, 1], [1, 0])
        tile = buffer.load(layout)
        width = n // UNIT * UNIT
        rows = gl.arange(0, part.shape[0], gl.SliceLayout(1, layout))
        cols = gl.arange(0, part.shape[1], gl.SliceLayout(0, layout))
        at = rows[:, None] * width + cols[None, :]  # of the part; fits 32 bits up to ROLES_COLUMNS
        inside = (rows < m - row)[:, None] & (cols < width - col)[None, :]
        gl.store(y_ptr + (row.to(gl.int64) * width + col) + at, tile, mask=inside)


@gluon.jit
def _zeros(rows: gl.constexpr, cols: gl.constexpr, multiplied: gl.constexpr, dtype: gl.constexpr, REST: gl.constexpr):
    """Return zeros in the layouts of sums of products of two tiles of dtype ``multiplied``."""
    depth: gl.constexpr = 256 // multiplied.primitive_bitwidth
    if REST:
        return _zeros(rows, cols - REST, multiplied, dtype, 0) + _zeros(rows, REST, multiplied, dtype, 0)
    else:
        return (gl.zeros((rows, cols), dtype, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, cols, depth])),)


@gluon.jit
def _scaled(acc, scale_a_ptr, scale_b_ptr):
    if scale_a_ptr is not None:
        acc *= gl.load(scale_a_ptr)
    if scale_b_ptr is not None:
        acc *= gl.load(scale_b_ptr)
    return acc


@gluon.jit
def _converted(sums, scale_a_ptr, scale_b_ptr, dtype: gl.constexpr):
    converted = ()
    for i in gl.static_range(len(sums)):
        converted += (_scaled(sums[i], scale_a_ptr, scale_b_ptr).to(dtype),)  # type: ignore[assignment]
    return converted


@gluon.jit
def _places(sums, top, left, COLS: gl.constexpr):
    """Return where ``sums``, which begin in row ``top`` and column ``left`` of a tile, are in the memory of a part.

    It consists of blocks of 8 x 8 elements, which a warp holds in two registers of each thread and stores at once.
    """
    layout: gl.constexpr = sums.type.layout
    rows = top + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    cols = left + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))
    return (rows // 8 * (8 * COLS) + rows % 8 * 8)[:, None] + (cols // 8 * 64 + cols % 8)[None, :]


@gluon.jit
def _each_flag(INSTRUCTIONS: gl.constexpr, flags, HALF: gl.constexpr):
    """Execute RELEASE or ACQUIRE in each thread of a warpgroup, on its own flag.

    A thread takes what the thread of the same number has given. So no barrier is needed.
    """
    flag = flags + (HALF * 128 + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])))
    gl.inline_asm_elementwise(INSTRUCTIONS, "=r,l,~{memory}", [flag], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _give(part, sums, HALF: gl.constexpr, COLS: gl.constexpr):
    """Store ``sums``, half of the rows of a tile, in the memory of ``part``, and set the flags of this half."""
    ptr, flags = part
    top = HALF * sums[0].shape[0]
    for i in gl.static_range(len(sums)):
        gl.store(ptr + _places(sums[i], top, i * sums[0].shape[1], COLS), sums[i])
    _each_flag(RELEASE, flags, HALF)


@gluon.jit
def _take(part, sums, HALF: gl.constexpr, COLS: gl.constexpr):
    """Wait for the flags of ``part`` and clear them, and return ``sums`` plus those that another program has given."""
    ptr, flags = part
    top = HALF * sums[0].shape[0]
    _each_flag(ACQUIRE, flags, HALF)
    total = ()
    for i in gl.static_range(len(sums)):
        total += (sums[i] + gl.load(ptr + _places(sums[i], top, i * sums[0].shape[1], COLS)),)  # type: ignore[assignment]
    return total


@gluon.jit
def _multiply(
    y,
    y_ptr,
    parts_ptr,
    flags_ptr,
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
    REST: gl.constexpr,
    WIDTH: gl.constexpr,
    UNIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    sharing: gl.constexpr = parts_ptr is not None
    tiles_m, tiles_n, blocks, depth, each = counts
    rows: gl.constexpr = BLOCK_M // 2
    area: gl.constexpr = BLOCK_M * BLOCK_N
    parts: gl.constexpr = BLOCK_N // WIDTH
    sums = _zeros(rows, BLOCK_N, ring[0].dtype, gl.float32, REST)
    done = _zeros(rows, BLOCK_N, ring[0].dtype, out.dtype, REST)  # the previous tile, which is not stored yet
    done_row = 0
    done_col = 0
    step = 0
    turn = 0
    whole = _whole(tiles_m * tiles_n, sharing)
    until = whole
    if sharing:
        share, begin, end, first, last = _share(tiles_m * tiles_n - whole, blocks, depth, each)
        others = gl.cdiv(blocks, depth) - 1  # parts of a tile but part 0
        if share == 0:
            until += gl.num_programs(0)  # one tile more
    for tile in range(gl.program_id(0), until, gl.num_programs(0)):
        length = blocks
        if sharing and tile >= whole:
            tile = whole + first
            length = end
        row, col = place(tile, tiles_m, tiles_n, GROUP_M)
        for part in gl.static_range(parts):
            sums = _step(sums, gl.to_tensor(part > 0), step, ring, HALF, A_ALONG_K, B_ALONG_K, STAGES)
            step += 1
            if turn > 0:
                _store(y, y_ptr, m, n, out, done, done_row, done_col, part, WIDTH, UNIT)
        for _ in range(parts, length):
            sums = _step(sums, gl.to_tensor(True), step, ring, HALF, A_ALONG_K, B_ALONG_K, STAGES)
            step += 1
        sums = _complete(sums, step, ring[3], STAGES)
        if sharing and tile >= whole:
            for other in range(others):
                at = first * others + other
                taken = (parts_ptr + at * area, flags_ptr + at * FLAGS)
                sums = _take(taken, sums, HALF, BLOCK_N)
        done = _converted(sums, scale_a_ptr, scale_b_ptr, out.dtype)
        done_row = row * BLOCK_M + HALF * rows
        done_col = col * BLOCK_N
        turn += 1
    if turn > 0:
        for part in gl.static_range(parts):
            _store(y, y_ptr, m, n, out, done, done_row, done_col, part, WIDTH, UNIT)
    if sharing and share > 0:
        for tile in range(first, last):
            for block in range(begin, end):
                sums = _step(sums, block > begin, step, ring, HALF, A_ALONG_K, B_ALONG_K, STAGES)
                step += 1
            sums = _complete(sums, step, ring[3], STAGES)
            other = tile * others + share - 1
            _give((parts_ptr + other * area, flags_ptr + other * FLAGS), sums, HALF, BLOCK_N)
    if y is not None:
        tma.store_wait(0)  # the shared memory belongs to another program after this one ends


@gluon.jit
def _rings(b, b_rest, STAGES: gl.constexpr):
    if b_rest is not None:
        return (room(b, STAGES), room(b_rest, STAGES))
    else:
        return (room(b, STAGES),)


@gluon.jit(do_not_specialize=["m", "n", "k", "depth", "each"])
def matmul_roles(
    a,  # descriptor of half the rows of a tile
    b,
    b_rest,  # of the last REST columns of a tile; None: b has tiles of all columns
    y,  # descriptor of half the rows and WIDTH columns of a tile; None: its rows are not aligned
    y_ptr,
    parts_ptr,  # for parts of the sums of tiles, but part 0; None: one program computes each tile
    flags_ptr,  # FLAGS for each of these parts, 0 before and after
    scale_a_ptr,
    scale_b_ptr,
    m,
    n,
    k,
    depth,  # blocks along k of a part
    each,  # tiles of which the same program computes the last part, if there are programs for it
    A_ALONG_K: gl.constexpr,  # the descriptor of a is [m, k], else [k, m]; that of b is [n, k], else [k, n]
    B_ALONG_K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    REST: gl.constexpr,  # columns of b_rest; 0 without
    WIDTH: gl.constexpr,  # columns of the parts in which a tile of y is stored, no more parts than blocks of k
    UNIT: gl.constexpr,  # without a descriptor of y, columns that a thread stores at once, up to 4
    STAGES: gl.constexpr,  # at most the number of blocks of k; a part of shared sums may have fewer
):
    """Multiply a [m, k] by b [k, n] on Hopper: one warp loads tiles, and two warpgroups multiply.

    Sums are float32. ``scale_a_ptr`` and ``scale_b_ptr`` point to one float32 each, or are None.
    """
    a_ring = room(a, 2 * STAGES)
    b_rings = _rings(b, b_rest, STAGES)
    stored: gl.constexpr = y_ptr.dtype.element_ty
    part: gl.constexpr = [BLOCK_M // 2, WIDTH]
    # Parts of a tile take buffers in turn, and the next tile begins with the first buffer again. It must not be the one
    # that the last part is still stored from, so their number divides that of the parts: 2, or 3 for three parts.
    buffers: gl.constexpr = 2 if BLOCK_N // WIDTH % 2 == 0 else 3
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(part, stored)
    first_out = gl.allocate_shared_memory(stored, [buffers] + part, out_layout)
    second_out = gl.allocate_shared_memory(stored, [buffers] + part, out_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()  # so that the accelerator sees the barriers
    ring = (a_ring, b_rings, full, empty)
    counts = (gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N), gl.cdiv(k, BLOCK_K), depth, each)
    gl.warp_specialize(
        [
            (_multiply, (
                y, y_ptr, parts_ptr, flags_ptr, m, n, first_out, ring, scale_a_ptr, scale_b_ptr, counts,
                0, A_ALONG_K, B_ALONG_K, BLOCK_M, BLOCK_N, GROUP_M, REST, WIDTH, UNIT, STAGES,
            )),
            (_multiply, (
                y, y_ptr, parts_ptr, flags_ptr, m, n, second_out, ring, scale_a_ptr, scale_b_ptr, counts,
                1, A_ALONG_K, B_ALONG_K, BLOCK_M, BLOCK_N, GROUP_M, REST, WIDTH, UNIT, STAGES,
            )),
            (_load, (
                a, b, b_rest, ring, counts,
                A_ALONG_K, B_ALONG_K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, REST, STAGES, parts_ptr is not None,
            )),
        ],
        [4, 1],
        [MULTIPLYING, LOADING],
    )  # fmt: skip
