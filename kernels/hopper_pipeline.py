"""Pieces of kernels whose warps have roles, in Gluon for sm_90: a ring of tiles in shared memory and its barriers.

One warp loads: it asks the tensor memory accelerator for tiles, as far ahead as the ring has slots. Two warpgroups
multiply: each has half of the rows of a tile of the result, and both read the same tiles of the right operand. While
one finishes its half, the other keeps the tensor cores busy.

The barriers. All three go through the same steps 0, 1, 2, ...; step t uses slot t % slots, in round t // slots. Each
slot has two barriers, and round r completes phase r of both:

    full    1 arrival, the loader's, with the number of bytes to come; the phase completes when they have come
    empty   2 arrivals, one of each warpgroup, when it has read all it needs of the slot

A warpgroup waits for phase r of full: parity r & 1. The loader waits for phase r - 1 of empty: parity (r - 1) & 1,
which a new barrier takes for completed. One thread arrives for its warpgroup, after the compiler has had all meet.

Parity says enough, for no barrier gets two phases ahead of one who waits: full completes phase r + 1 only after empty
has completed phase r, hence after both warpgroups have passed phase r of full; and empty completes phase r only after
the loader has passed phase r - 1 of it.

Nobody waits for ever. Put all waits in order of their steps, the loader's of a step before the warpgroups'. At step t
the loader waits for what warpgroups do at step t - slots, and a warpgroup for what the loader does at step t, whose
bytes always come, since those beyond the edge of a tensor are zeros and count too. So each wait is for something that
only earlier waits hold up, and none can be the first that lasts. What a warpgroup does between two steps, it does
alone. A tile that stays for many steps is a ring of one slot, whose steps lie among the others in one order, which is
the same for all three.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from . import tensor_cores

place = gluon.jit(tensor_cores.place.fn)  # Gluon calls functions of its own kind only
root = gluon.jit(tensor_cores.root.fn)


@gluon.jit
def room(descriptor, COUNT: gl.constexpr):
    """Shared memory for so many of the tiles that ``descriptor`` copies."""
    shape: gl.constexpr = [COUNT] + descriptor.block_type.shape  # noqa: RUF005 - Gluon has no other way
    return gl.allocate_shared_memory(descriptor.dtype, shape, descriptor.layout)


@gluon.jit
def barriers(SLOTS: gl.constexpr, ARRIVALS: gl.constexpr):
    """One barrier for each slot. A fence must follow, before the accelerator hears of them."""
    made = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(made.index(slot), count=ARRIVALS)
    return made


@gluon.jit
def wait_full(full, step, SLOTS: gl.constexpr):
    """For the tiles of ``step`` to have come."""
    mbarrier.wait(full.index(step % SLOTS), step // SLOTS & 1)


@gluon.jit
def wait_empty(empty, step, SLOTS: gl.constexpr):
    """For the slot of ``step`` to be free of what was there before."""
    mbarrier.wait(empty.index(step % SLOTS), (step // SLOTS & 1) ^ 1)


@gluon.jit
def leave(empty, step, SLOTS: gl.constexpr):
    """Says that this warpgroup has read all it needs of the slot of ``step``."""
    mbarrier.arrive(empty.index(step % SLOTS), count=1)


@gluon.jit
def part_of(tile, PART: gl.constexpr, OF: gl.constexpr):
    """The columns of part PART of OF, a power of 2, of a tile in registers."""
    # By halves, for which columns of the same thread only have to be told apart.
    if OF == 1:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tile.shape[1], 16])
        return gl.convert_layout(tile, layout, assert_trivial=True)
    else:  # noqa: RET505 - without it both branches are compiled
        left, right = tile.reshape((tile.shape[0], 2, tile.shape[1] // 2)).permute((0, 2, 1)).split()
        if PART < OF // 2:
            return part_of(left, PART, OF // 2)
        else:  # noqa: RET505
            return part_of(right, PART - OF // 2, OF // 2)


@gluon.jit
def shares(program, programs, row_tiles, col_tiles):
    """How many tiles a program has, and how many of them make up whole rows; then where its part of the rest begins.

    As many rows as can be are dealt out whole, so that programs pass the same columns at the same time and share them
    in L2. The tiles of the rows that are left are cut into equal parts.
    """
    rest = row_tiles % programs * col_tiles
    whole = row_tiles // programs * col_tiles
    begin = program * (rest // programs) + min(program, rest % programs)
    own = rest // programs
    if program < rest % programs:
        own += 1
    return whole + own, whole, row_tiles // programs * programs * col_tiles + begin


@gluon.jit
def row_of_tiles(at, total, whole, begin, program, programs, col_tiles):
    """Find the tiles from ``at`` on that lie in one row: the row, the first column, and how many."""
    if at < whole:  # noqa: SIM108 - only one of them is computed
        index = (at // col_tiles * programs + program) * col_tiles + at % col_tiles
    else:
        index = begin + at - whole
    col = index % col_tiles
    return index // col_tiles, col, min(col_tiles - col, total - at)
