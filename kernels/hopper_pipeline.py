"""Parts of kernels with specialized warps, in Gluon for sm_90: a ring of tiles in shared memory, and its barriers.

One warp, the loader, requests tiles from the tensor memory accelerator, as far ahead as the ring has slots. Two
warpgroups multiply: each computes half of the rows of a tile of the result, and both read the same tiles of the right
operand. While one finishes its half, the other keeps the tensor cores busy.

Barriers. All three roles go through the same steps 0, 1, 2, ... Step t uses slot t % slots, in round t // slots. Each
slot has two barriers, and round r completes phase r of both:

    full    1 arrival, by the loader, with the number of bytes to load; the phase completes when they have arrived
    empty   2 arrivals, one by each warpgroup when it has read all it needs from the slot

A warpgroup waits for phase r of full, with parity r & 1. The loader waits for phase r - 1 of empty, with parity
(r - 1) & 1; a new barrier counts as completed at that parity. One thread arrives for its warpgroup, after a barrier of
the warpgroup that the compiler inserts.

Parity is enough, since no barrier gets two phases ahead of a role that waits for it. Full completes phase r + 1 only
after empty has completed phase r, and so after both warpgroups have passed phase r of full. Empty completes phase r
only after the loader has passed phase r - 1 of it.

There is no deadlock. Order all waits by their steps, and the loader's wait of a step before those of the warpgroups. At
step t the loader waits for an arrival of the warpgroups at step t - slots. A warpgroup waits for the loader's request
of step t, whose bytes always arrive: bytes beyond the edge of a tensor are zeros and count too. So each wait depends on
earlier waits only. Between two steps a warpgroup waits for nobody. A tile that stays for many steps is a ring of one
slot; its steps have the same place in the order of all three roles.
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
    """Allocate shared memory for COUNT tiles of ``descriptor``."""
    shape: gl.constexpr = [COUNT] + descriptor.block_type.shape  # noqa: RUF005 - Gluon has no other way
    return gl.allocate_shared_memory(descriptor.dtype, shape, descriptor.layout)


@gluon.jit
def barriers(SLOTS: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate and initialize a barrier for each slot. A fence must follow before the accelerator uses them."""
    made = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(made.index(slot), count=ARRIVALS)
    return made


@gluon.jit
def wait_full(full, step, SLOTS: gl.constexpr):
    """Wait until the tiles of ``step`` have arrived."""
    mbarrier.wait(full.index(step % SLOTS), step // SLOTS & 1)


@gluon.jit
def wait_empty(empty, step, SLOTS: gl.constexpr):
    """Wait until the slot of ``step`` is free."""
    mbarrier.wait(empty.index(step % SLOTS), (step // SLOTS & 1) ^ 1)


@gluon.jit
def leave(empty, step, SLOTS: gl.constexpr):
    """Signal that this warpgroup has read all it needs from the slot of ``step``."""
    mbarrier.arrive(empty.index(step % SLOTS), count=1)


@gluon.jit
def part_of(tile, PART: gl.constexpr, OF: gl.constexpr):
    """Return the columns of part PART out of OF parts of a tile in registers. OF is a power of 2."""
    # Halve repeatedly: each step only renames registers of the same thread.
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
    """Distribute tiles over programs.

    Each program gets the same number of whole rows of tiles, so that all programs are at the same columns at the same
    time and share them in L2. The tiles of the remaining rows are divided equally.

    Returns:
        The number of tiles of this program, how many of them are in whole rows, and the index of its first other tile.

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
    """Return the run of tiles from ``at`` on that lie in one row: the row, the first column, and their number."""
    if at < whole:  # noqa: SIM108 - an expression would compute both
        index = (at // col_tiles * programs + program) * col_tiles + at % col_tiles
    else:
        index = begin + at - whole
    col = index % col_tiles
    return index // col_tiles, col, min(col_tiles - col, total - at)
