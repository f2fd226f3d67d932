"""Choose the launch of a Triton kernel for given rows. All facts about the GPU are arguments."""

from __future__ import annotations

from dataclasses import dataclass

import triton

from ..row_vectors import VECTOR, Access, Rows, access

# The longest row that a program holds: 32768 columns of float32, with 32 warps. At twice that, registers spill.
MAX_ROW_BYTES = 32_768 * 4

WARP_BYTES = 4096  # bytes of a row for a warp, in the arithmetic type: about 32 registers of a thread
# Rows of fewer columns than SHORT share a program, which has PROGRAM_ELEMENTS, or fewer if there would then be fewer
# programs than multiprocessors. A thread has SHARE_BYTES of them, but no more than SHARE_LOADS loads.
SHORT, PROGRAM_ELEMENTS = 1024, 1024
SHARE_BYTES, SHARE_LOADS = 32, 8
MOST_STEPS = 8  # loads of a row, or slightly fewer: the last one is partly empty, and each is code of its own

# How often a row is read, by bytes of an element and warps; all other rows are read once. A row that is kept from the
# maximum to the division takes so many registers that only half of the threads fit on a multiprocessor. A row that is
# read again, from L1, takes fewer. Three reads, for maximum, sum and y, take half as many at 16384 columns of 16 bits.
# Speed relative to a copy on an H200 with one, two and three reads, in bfloat16: 4096 columns 98, 100, 97 %; 16384: 96,
# 92, 100 %; 32768: 77, 70, 97 %. In float32, 16384: 98, 101, 101 %. 8192 columns, not measured, have the value of 4096.
READS = {(2, 4): 2, (2, 8): 2, (2, 16): 3, (2, 32): 3, (4, 16): 2}

# Long rows are read twice. These are the most warps that a program can have, so that few rows are in flight and the
# cache still holds what was read first. In float64, 32 warps spill. The second read of a slice is in another launch.
LONG_WARPS = 32
SLICE_WARPS = 8
THREAD_BYTES = 32  # bytes that a thread reads in a step of the loop; twice that if no other program reads meanwhile
SLICE_STEPS = 16  # the most steps of a slice: slices of different programs then end at about the same time
SLICE_PROGRAMS = 8  # programs of a multiprocessor, at least, if the rows are long enough
MOST_SLICES = 512  # of a row: each program of the second launch merges their results

# For the choice between one launch and two. The cache holds what was read last, about half of its bytes, since the
# other half holds what is written. A multiprocessor alone is 1.5 times as fast as one of many. A second launch
# costs as much as copying 8 MB, about 2 us.
ALONE = 1.5
LAUNCH_BYTES = 8 << 20

# Backward, where a row is a pair of rows, of y and dy. HELD is the longest row, in columns, that a program holds, by
# bytes of an element. It applies to rows that are loaded in whole vectors; in others, edges and masks take registers
# too. On an H200, 8192 rows of 32768 bfloat16 take 371 us if they are held, and 379 us or more if they are read twice.
# In float32 they take 750 us with 8 warps, although some twenty registers spill, 845 us with 32 warps, and 766 us if
# they are read twice.
HELD = {2: 32_768, 4: 32_768, 8: 4_096}
HELD_UNALIGNED = {2: 8_192, 4: 16_384, 8: 4_096}
HELD_WARPS = {2: 32, 4: 8, 8: 8}  # the most of a program that holds rows
ALONE_BYTES = 1024  # a longer row with edges has a program of its own
PAIR_TILE = 4096  # the least elements of a program: it takes several short rows
PAIR_WARP_BYTES = 4096  # bytes of each tensor for a warp, in the arithmetic type: 64 registers of a thread for both


@dataclass(frozen=True)
class Asked:
    """What the caller has chosen: columns that a program holds, its rows and its warps."""

    block: int | None = None
    rows: int | None = None
    warps: int | None = None


@dataclass(frozen=True)
class Held:
    """A launch of ``_softmax_rows``: rows of a program, columns of a load and loads of a row; ``sure`` are whole."""

    rows: int
    step: int
    steps: int
    sure: int
    warps: int
    reads: int
    access: Access


def _rows_together(x: Rows, block: int) -> int:
    """Return how many rows, of ``block`` columns each, a program holds."""
    rows = PROGRAM_ELEMENTS // block if block < SHORT else 1
    while rows > 1 and triton.cdiv(x.rows, rows) < x.multiprocessors:
        rows //= 2
    return max(1, rows)


def held(x: Rows, asked: Asked = Asked()) -> Held:
    """Return the launch for rows that fit into the registers of a program."""
    block = triton.next_power_of_2(x.cols)
    rows = asked.rows or _rows_together(x, block)
    loads = access(x, rows)
    if rows > 1:
        fit = rows * block // (32 * min(SHARE_BYTES // x.itemsize, SHARE_LOADS * loads.unit))
    else:
        # The power of 2 of warps whose threads hold 23 to 45 numbers. Each lone element has a mask of its own,
        # which takes as much.
        numbers = WARP_BYTES // (2 * x.wide if loads.scalar else x.wide)
        fit = triton.next_power_of_2(x.cols * 7 // (5 * numbers) + 1) // 2
    warps = asked.warps or min(32, max(1, fit))
    # A row of a power of 2 of columns needs one load, which takes the fewest registers. Rows that share a program are
    # faster in two: fewer threads hold one row, and exchange less.
    steps = MOST_STEPS if x.cols < block else 2 if rows > 1 else 1
    # A load of one vector for each thread, or more.
    step = min(block, max(triton.cdiv(32 * warps * loads.unit, rows), block // steps, 2 * loads.unit))
    whole = (x.cols - loads.unit + 1) if loads.edges else x.cols  # at the least
    sure = whole // step if x.rows % rows == 0 else 0
    # Where a multiprocessor has one program, it has enough registers.
    reads = READS.get((x.itemsize, warps), 1) if rows == 1 and x.rows > x.multiprocessors and not loads.scalar else 1
    return Held(rows, step, triton.cdiv(x.cols, step), sure, warps, reads, loads)


@dataclass(frozen=True)
class Long:
    """One launch of a kernel for long rows, by ``programs`` programs, or two, if a row has more than one slice."""

    slices: int  # of a row
    steps: int  # of a slice
    step: int  # columns
    warps: int
    programs: int  # fewer than rows: each takes rows in turn, so that few are in flight
    access: Access


def long(x: Rows, tensors: int, asked: Asked = Asked()) -> Long:
    """Return the launch for rows that are too long for registers, of which ``tensors`` are read and one is written."""
    read, cached = tensors * x.bytes, x.l2 / 2
    # What the second read finds in the cache is what was read last.
    together = min(x.rows, x.multiprocessors)
    missed, missed_apart = (max(0.0, 1 - cached / (rows * read)) for rows in (together, x.rows))
    one = max(
        x.rows * (read * (1 + missed) + x.bytes),
        triton.cdiv(x.rows, x.multiprocessors) * (2 * read + x.bytes) * x.multiprocessors / ALONE,
    )
    two = x.rows * (read * (1 + missed_apart) + x.bytes) + LAUNCH_BYTES
    apart = two < one
    # A second program of a multiprocessor computes while the first one waits, if the cache has room for its row.
    pair = 2 * x.multiprocessors * read <= cached
    warps = asked.warps or (SLICE_WARPS if apart else LONG_WARPS if x.itemsize < 8 else LONG_WARPS // 2)
    thread = THREAD_BYTES if apart or pair or x.itemsize == 8 else 2 * THREAD_BYTES
    step = asked.block or 32 * warps * thread // (tensors * x.itemsize)
    steps = int(triton.cdiv(x.cols, step))
    if not apart:
        return Long(1, steps, step, warps, x.rows if pair else together, access(x, 1))
    slice_steps = min(SLICE_STEPS, triton.cdiv(steps, triton.cdiv(SLICE_PROGRAMS * x.multiprocessors, x.rows)))
    slice_steps = max(slice_steps, triton.cdiv(steps, MOST_SLICES))
    slices = int(triton.cdiv(steps, slice_steps))
    return Long(slices, int(slice_steps), step, warps, x.rows * slices, access(x, 1))


def longest_held(itemsize: int, loads: Access) -> int:
    """Return the columns of the longest pair of rows that a program of the backward holds."""
    whole = not loads.edges and loads.unit * itemsize == VECTOR
    return (HELD if whole else HELD_UNALIGNED)[itemsize]


def backward_warps(elements: int, itemsize: int) -> int:
    """Return the warps whose registers hold two tiles of ``elements`` elements of ``itemsize`` bytes."""
    return min(HELD_WARPS[itemsize], max(1, elements * max(4, itemsize) // PAIR_WARP_BYTES))


def forward(x: Rows, asked: Asked) -> Held | Long:
    """Return the launch of the forward."""
    longest = asked.block or MAX_ROW_BYTES // x.wide
    return long(x, 1, asked) if triton.next_power_of_2(x.cols) > longest else held(x, asked)
