"""Choose the kernel of ``triton.py`` and its tiles for a product, by a plain function of sizes, dtype and GPU.

Nothing is timed during a call. Only a few tile shapes are useful, and the best one follows from the number of tiles: a
GPU works in waves of one tile for each multiprocessor, and a wave that is nearly empty takes as long as a full one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Literal, NamedTuple

Precision = Literal["ieee", "tf32x3", "tf32"]  # of products of float32
Pair = tuple[bool, ...]  # for a and for b

HOPPER_SHARED = 232_448 - 1024  # bytes of shared memory of a multiprocessor for its programs, without barriers
K_BYTES = 128  # bytes of a row of a tile along k: the span of the widest swizzle of shared memory
CORE_BYTES = 7.99e6  # bytes of a, for each column of b, that a multiprocessor multiplies in 1 us
READ_BYTES = 1.17e5  # bytes that a multiprocessor reads in 1 us, from memory or L2
ALL_READ_BYTES = 8.72e4  # bytes that each multiprocessor reads in 1 us if all read at once
STORE_ELEMENTS = 7.46e3  # elements of y that a multiprocessor stores in 1 us
PART_BYTES = 3.08e6  # bytes of partial sums that all multiprocessors write to L2 and read again in 1 us
PART_US = 0.19  # time for which the last program of a tile waits for one part of its sums
JOIN_US = 1.5  # time to store partial sums and to count, before the last program of a tile adds them up
PART_BLOCKS = 5  # blocks along k that are multiplied in the time in which a part of the sums is stored or added
LAUNCH_US = 2.94  # time that a kernel which copies small operands adds
EARLY_US = 0.72  # time that is saved if the product starts before that kernel has ended
SHORT_US = 6.0  # a product by descriptors that takes longer does not start early
MEMORY_BYTES = 4.2e6  # bytes that the GPU reads from memory, or writes, in 1 us
ENOUGH = 0.54  # share of the multiprocessors that reach this rate
LONE = 0.52  # share of the rates of two programs on a multiprocessor that one program alone reaches
COPIED_BYTES = 1.79e6  # bytes of operands that the GPU copies in 1 us
CACHED_BYTES = 23e6  # bytes of a copy that stay in L2; the others are written to memory and read again
MISSED_BYTES = 4.07e6  # bytes that the GPU writes to memory and reads again in 1 us
SHARE_US = 6.0  # time of shared tiles beyond that of their sums
SHARED_WAVE = 0.75  # tiles of a wave that fills a larger share of the multiprocessors are not shared
CROSSED = 1.6  # time to read rows that lie in two lines of L2, over that of others
FILL_US = 1.03  # from the start of a program until its first tiles have arrived

ITEMSIZE = {"float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes


@dataclass(frozen=True, slots=True)
class Configuration:
    """A kernel and its tiles: ``block_m`` x ``block_n`` of y, with ``block_k`` terms in a step."""

    kernel: Literal["roles", "descriptors", "skinny", "pointers"]
    block_m: int
    block_n: int
    block_k: int
    stages: int  # steps in flight, the current one included
    warps: int
    group_m: int = 1  # rows of tiles that are visited together
    split_k: int = 1  # parts of a sum
    programs: int = 1  # programs on a multiprocessor: one multiplies while the other stores
    pieces: int = 1  # pieces of a tile's columns: to store one at a time leaves shared memory for one more stage
    shared: bool = False  # all programs share the tiles of the last, incomplete wave
    lined: Pair = (False, False)  # first copy a, and b, so that its rows begin at lines of L2
    early: bool = False  # if operands are copied, start before the kernel that copies them has ended
    copies: bool = False  # first copy what loads of 16 bytes cannot read

    @property
    def rest(self) -> int:
        """Columns of a tile beyond its largest power of 2, since a tensor has powers of 2 as its shape."""
        return self.block_n // 3 if self.block_n % 3 == 0 else 0

    def __str__(self) -> str:
        tile = f"{self.kernel} {self.block_m}x{self.block_n}x{self.block_k}, {self.stages} stages, {self.warps} warps"
        group = f", groups of {self.group_m}" if self.group_m > 1 else ""
        pair = f", {self.programs} a multiprocessor" if self.programs > 1 else ""
        split = f", k in {self.split_k} parts" if self.split_k > 1 else ""
        wave = ", last wave shared" if self.shared else ""
        return tile + group + pair + split + wave + (", copied" if self.copies else "")


@dataclass(frozen=True, slots=True)
class _Tile:
    block_m: int
    block_n: int
    warps: int
    rate: float  # share of the tensor cores' rate that the loop reaches; small tiles load more for each product
    programs: int = 1
    k_bytes: int = K_BYTES


# A wgmma has 64 rows, four warps and at most 256 columns; its accumulator takes up to 128 registers of a thread.
# Small tiles use longer steps: with few products in a step, the waits for tiles and their release dominate. Rates are
# those that explain the times of 7,600 choices for 154 shapes on an H100 and an H200, with a cold L2.
TILES = (
    _Tile(128, 256, 8, 0.83),
    _Tile(128, 192, 8, 0.66),
    _Tile(128, 128, 4, 0.76, programs=2),
    _Tile(128, 128, 8, 0.71),
    _Tile(64, 192, 4, 1, programs=2),
    _Tile(64, 192, 4, 0.57, k_bytes=2 * K_BYTES),
    _Tile(64, 128, 4, 0.88, programs=2),
    _Tile(64, 128, 4, 1, k_bytes=2 * K_BYTES),
    _Tile(64, 64, 4, 0.43, k_bytes=2 * K_BYTES),
    _Tile(64, 32, 4, 0.21, k_bytes=2 * K_BYTES),
)
ROLES = (  # of kernel "roles", which stores a tile during the next
    _Tile(128, 256, 4, 0.95),
    _Tile(128, 192, 4, 0.86),
    _Tile(128, 128, 4, 0.66),
)
ROLES_STORE = 32 * 1024  # bytes for the parts of y that are stored; tiles of 192 columns need 48 KiB, which is left
SKINNY_RATE = 0.34
MANY = 1.5  # tiles of 128 x 128 for each multiprocessor
PREFER_ROLES = 1.28  # with MANY tiles, it is chosen although another one is estimated to be faster by up to this factor
PREFER_SKINNY = 1.03  # likewise: where memory is the limit, estimates are equal, and it reads most at once
STORED = 8  # columns: if n is a multiple, the copy engine stores y in 16 bits, and no warp waits for it
ROLES_COLUMNS = 2**24  # of y for kernel "roles", at most: offsets within a tile then need no more than 32 bits
MOST_STAGES = 8
FEWEST_STEPS = 4  # along k for kernel "roles": as many as parts that y is stored in, and slots of the ring
FEW_STEPS = 8  # along k: with no more of them, four stages are up to 5 % faster than as many as fit
LONGEST = 2**31 - 256  # of m, n and k; beyond, indices in the last tile may need more than 32 bits
SKINNY_ROWS = 64  # rows of the narrow operand, at most; beyond, its tile is larger than that of the wide operand


def configuration(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    capability: tuple[int, int],
    multiprocessors: int,
    precision: Precision = "ieee",
    roles: bool = False,
    crossed: Pair = (False, False),
) -> Configuration:
    """Return the configuration for a [m, k] @ b [k, n].

    Args:
        m: rows of a.
        n: columns of b.
        k: columns of a.
        dtype: of both, a key of ``ITEMSIZE``.
        capability: compute capability of the GPU.
        multiprocessors: number of multiprocessors of the GPU.
        precision: of float32: "tf32" rounds its factors, "tf32x3" multiplies them in two parts, "ieee" as they are.
        roles: kernels with specialized warps are available.
        crossed: whether rows of a in memory run across k and begin at multiples of 16 bytes but not of 128, so that
            each row of a tile lies in two lines of the L2 cache; and those of b.

    """
    exact = dtype == "float64" or (dtype == "float32" and precision != "tf32")
    if capability[0] != 9 or exact or max(m, n, k) > LONGEST:
        return pointers(m, n, k, dtype, capability=capability, multiprocessors=multiprocessors, precision=precision)
    ways = []
    for lined in product(*((False, True) if one else (False,) for one in crossed)):
        left = tuple(one and not copy for one, copy in zip(crossed, lined, strict=True))
        us, how = _hopper(m, n, k, ITEMSIZE[dtype], multiprocessors, roles=roles, crossed=left)
        copied = tuple(size for size, copy in zip((m * k, k * n), lined, strict=True) if copy)
        ways.append((us + (_copying_us(copied, dtype) if copied else 0), replace(how, lined=lined)))
    return min(ways, key=itemgetter(0))[1]


@lru_cache(maxsize=4096)
def _hopper(
    m: int, n: int, k: int, itemsize: int, multiprocessors: int, *, roles: bool, crossed: Pair = (False, False)
) -> tuple[float, Configuration]:
    """Return the shortest estimated time in us if descriptors read both operands, and its configuration."""
    enough = _cdiv(k * itemsize, K_BYTES) >= FEWEST_STEPS
    possible = roles and itemsize <= 2 and enough and n <= ROLES_COLUMNS
    many = _cdiv(m, 128) * _cdiv(n, 128) >= MANY * multiprocessors

    def weighted(choice: tuple[float, Configuration]) -> float:
        us, how = choice
        return us / (PREFER_SKINNY if how.kernel == "skinny" else PREFER_ROLES if how.kernel == "roles" and many else 1)

    choices = hopper_choices(m, n, k, itemsize, multiprocessors, crossed)
    return min((choice for choice in choices if possible or choice[1].kernel != "roles"), key=weighted)


def hopper_choices(
    m: int, n: int, k: int, itemsize: int, multiprocessors: int, crossed: Pair = (False, False)
) -> list[tuple[float, Configuration]]:
    """Return all configurations that read operands by descriptors, with estimated times in us."""
    size = (m, n, k, itemsize, multiprocessors, crossed)
    blocks = _cdiv(k * itemsize, K_BYTES)
    splits = [split for split in SPLITS if split == 1 or 8 * split <= min(blocks, 64)]
    narrow, wide = min(m, n), max(m, n)
    choices = []
    if narrow <= SKINNY_ROWS < wide:
        choices = _skinny(narrow, wide, k, itemsize, multiprocessors, crossed[::-1] if narrow == m else crossed)
    choices += [
        (_tiled_us(tile, split, *size), _descriptors(tile, split, k * itemsize, itemsize))
        for tile in TILES
        for split in splits
        if tile.block_m == 64 or 2 * m > tile.block_m
    ]
    for tile in ROLES:
        # group_m: of 4 to 16, 12 was the fastest or within 0.2 % of it for nine large shapes in two dtypes. The
        # exception is 16384 cubed in float16, where 8 was 1.2 % faster, in a separate run.
        stages = min(blocks, (HOPPER_SHARED - ROLES_STORE) // ((128 + tile.block_n) * K_BYTES))
        how = Configuration("roles", 128, tile.block_n, K_BYTES // itemsize, stages, warps=4, group_m=12)
        choices.append((_tiled_us(tile, 1, *size), how))
        last = _cdiv(m, 128) * _cdiv(n, tile.block_n) % multiprocessors  # tiles of an incomplete wave
        # Tiles of 128 columns are not shared: none of 53 shapes gained from it. Nor are those of a fuller wave: one of
        # 22 shapes gained 4 %, and others lost up to 21.
        few = 0 < last <= SHARED_WAVE * multiprocessors
        if few and tile.block_n > 128 and share_tiles(last, blocks, multiprocessors)[0] < blocks:
            choices.append((_tiled_us(tile, 1, *size, shared=True), replace(how, shared=True)))
    return [(us, replace(how, early=_early_start_pays(us, how))) for us, how in choices]


def _early_start_pays(us: float, how: Configuration) -> bool:
    """Return whether a product of ``us`` is faster if it starts before the kernel that copies operands has ended.

    Its programs then take the multiprocessors that this kernel leaves first, and two may take the same one. Skinny
    products have many small programs, so that this does not matter: over 110 choices they took 5 % less time.
    """
    return how.kernel == "skinny" or (how.kernel == "descriptors" and how.programs == 1 and us < SHORT_US)


def _tiled_us(
    tile: _Tile,
    split: int,
    m: int,
    n: int,
    k: int,
    itemsize: int,
    multiprocessors: int,
    crossed: Pair,
    *,
    refilled: bool = False,
    shared: bool = False,
) -> float:
    """Return the estimated time in us of a product whose programs each compute a tile of y, or a part of its sums.

    ``refilled``: the programs of a wave do not load operands before the previous wave has ended. ``shared``: all
    programs share the tiles of the last wave.
    """
    items = _cdiv(m, tile.block_m) * _cdiv(n, tile.block_n) * split
    area = tile.block_m * tile.block_n
    depth = _cdiv(_cdiv(k * itemsize, tile.k_bytes), split) * tile.k_bytes  # bytes along k
    # A tile reads as many rows as it has, on average over y; its others, beyond the edge of y, cost half.
    read = depth * sum(
        (CROSSED if one else 1) * (block + size / _cdiv(size, block)) / 2
        for one, block, size in zip(crossed, (tile.block_m, tile.block_n), (m, n), strict=True)
    )
    multiplied = area * depth / (CORE_BYTES * tile.rate)
    # Programs that share a multiprocessor share its rates, and one stores while the other multiplies. Rows that are not
    # aligned are stored by the threads, which do not multiply meanwhile.
    aside = (tile in ROLES or tile.programs > 1) and n % STORED == 0
    store = area / STORE_ELEMENTS
    all_bytes = (m * k + k * n + m * n) * itemsize
    slots = tile.programs * multiprocessors
    waves, rest = divmod(items, slots)

    def wave(programs: int) -> float:
        here = max(_cdiv(programs, multiprocessors), 1 / LONE if tile.programs > 1 else 1)
        reading = max(here * read / READ_BYTES, programs * read / (multiprocessors * ALL_READ_BYTES))
        reached = MEMORY_BYTES * min(1, programs / multiprocessors / ENOUGH)
        loop = max(here * multiplied, reading)
        return max(max(loop, store) if aside else loop + store, all_bytes * programs / items / reached)

    if shared:
        blocks = depth // tile.k_bytes
        part = share_tiles(rest, blocks, multiprocessors)[2] / blocks
        return FILL_US + (waves + part) * wave(slots) + store + SHARE_US
    us = FILL_US + waves * wave(slots) + (wave(rest) if rest else 0) + (store if aside else 0)
    return us + (FILL_US * (waves + (rest > 0) - 1) if refilled else 0) + _joining_us(split, area, m * n)


@lru_cache(maxsize=4096)
def share_tiles(tiles: int, blocks: int, programs: int) -> tuple[int, int, int]:
    """Return how ``programs`` share fewer ``tiles``, each with sums over ``blocks`` along k.

    Sums are cut into parts of equal length, and a program computes one part of one tile. Where programs are left, each
    of them can compute a shorter last part of several tiles in the same time. So at any time, programs are at few
    places along k, where they read the same columns of a and rows of b from L2.

    Returns:
        The number of blocks in a part; the number of tiles whose last part the same program computes, or 0 if none does
        so; and the time until the sums of a tile are complete, as a number of blocks.

    """
    most, left = divmod(programs, tiles)
    ways = []
    for parts in range(1, most + 1):
        depth = max(FEWEST_STEPS, _cdiv(blocks, parts))
        ways.append((depth + PART_BLOCKS * (_cdiv(blocks, depth) - 1), depth, 0))
    if left:
        each = _cdiv(tiles, left)
        depth = max(FEWEST_STEPS, _cdiv((blocks + PART_BLOCKS) * each, most * each + 1))
        if most * depth < blocks:
            ways.append((depth + PART_BLOCKS * most, depth, each))
    time, depth, each = min(ways)
    return depth, each, time


def _descriptors(tile: _Tile, split: int, depth: int, itemsize: int) -> Configuration:
    stored = 4 if itemsize == 4 else 2
    pieces = 3 if tile.block_n % 3 == 0 else 2 if tile.block_n == 256 or tile.programs > 1 else 1
    store = tile.block_m * tile.block_n // pieces * stored
    stage = (tile.block_m + tile.block_n) * tile.k_bytes
    fits = (HOPPER_SHARED // tile.programs - store) // stage
    return Configuration(
        kernel="descriptors",
        block_m=tile.block_m,
        block_n=tile.block_n,
        block_k=tile.k_bytes // itemsize,
        stages=min(fits, MOST_STAGES if depth > FEW_STEPS * tile.k_bytes * split else 4),
        warps=tile.warps,
        group_m=16 if tile.programs > 1 else 8,
        split_k=split,
        programs=tile.programs,
        pieces=pieces,
    )


def _skinny(
    narrow: int, wide: int, k: int, itemsize: int, multiprocessors: int, crossed: Pair
) -> list[tuple[float, Configuration]]:
    """Return the estimated times of skinny kernels, each with 64 rows of the wide operand for a program."""
    block_m = max(16, 1 << (narrow - 1).bit_length())
    k_bytes = 512 if block_m <= 32 else 256
    found = []
    for programs in (1, 2):
        tile = _Tile(64, block_m, 4, SKINNY_RATE, programs, k_bytes)
        stages = min(4 if block_m <= 32 else 6, HOPPER_SHARED // programs // ((64 + block_m) * k_bytes))
        if stages < 2:
            continue
        for split in SPLITS:
            if split == 1 or k * itemsize >= 2 * split * k_bytes:
                us = _tiled_us(tile, split, wide, narrow, k, itemsize, multiprocessors, crossed, refilled=True)
                how = Configuration("skinny", block_m, 64, k_bytes // itemsize, stages, 4, split_k=split)
                found.append((us, how))
    return found


class Load(NamedTuple):
    """How a thread of the kernel "pointers" loads an operand."""

    width: int  # bytes at once
    along_k: bool  # these are neighbours along k


Loads = tuple[Load, Load]  # of a and of b


def row_major(a: int = 16, b: int = 16) -> Loads:
    """Return how a row-major a [m, k] and b [k, n] are loaded, ``a`` and ``b`` bytes at once."""
    return Load(a, along_k=True), Load(b, along_k=False)


ROW_MAJOR = row_major()


def _narrowest(loads: Loads) -> int:
    return min(load.width for load in loads)


@dataclass(frozen=True, slots=True)
class _Loop:
    """The loop of kernel "pointers" for one kind of product, on an H100."""

    tiles: tuple[_Tile, ...]  # ``rate``: operations of a multiprocessor in 1 us with as many ``programs`` as fit
    step_us: float  # latency of a step, which other programs of the multiprocessor hide
    loaded: Mapping[Load, float]  # bytes that a multiprocessor loads in 1 us, if it loads nothing else
    stored: float = 128 * 128  # elements of y that a multiprocessor stores in 1 us
    fill_us: float = FILL_US
    memory: float = MEMORY_BYTES  # bytes that the GPU reads in 1 us


def _loads(along_k: Mapping[int, float], across: Mapping[int, float]) -> dict[Load, float]:
    rates = {Load(width, True): rate for width, rate in along_k.items()}
    return rates | {Load(width, False): rate for width, rate in across.items()}


EITHER_WAY = {16: 5.0e4, 8: 4.5e4, 4: 3.5e4}
FLOAT32_LOADS = _loads(EITHER_WAY, EITHER_WAY)
# Tiles for tensor cores: rows and columns, warps, programs, and a rate for each of KINDS. Hopper has other kernels for
# aligned rows. Narrow loads of 16 bits go through registers. 128 x 64 was not measured for the first two kinds.
KINDS = ("aligned", "unaligned tf32", "unaligned", "through registers")
TENSOR_CORES = (
    (128, 128, 8, 2, (1.9e6, 2.25e6, 4.15e6, 1.4e6)),
    (128, 64, 4, 2, (None, None, 1.92e6, 2.32e6)),
    (64, 128, 4, 2, (1.4e6, 1.34e6, 2.5e6, 1.19e6)),
    (64, 64, 4, 4, (1.1e6, 6.8e5, 2.78e6, 1.2e6)),
    (64, 32, 4, 4, (6.6e5, 5.7e5, 1.17e6, 1.12e6)),
    (32, 64, 4, 4, (6.9e5, 8.2e5, 1.05e6, 7.2e5)),
    (64, 16, 4, 5, (4.8e5, 3.7e5, 7.8e5, 6.0e5)),
    (16, 64, 4, 5, (2e6, 2.2e6, 1.17e6, 2.92e6)),
)


def _on_tensor_cores(kind: str) -> tuple[_Tile, ...]:
    return tuple(
        _Tile(rows, cols, warps, rate, programs)
        for rows, cols, warps, programs, rates in TENSOR_CORES
        if (rate := rates[KINDS.index(kind)]) is not None
    )


HIDDEN = 1e9  # elements of y in 1 us: the time of a store counts for nothing
LOOPS = {
    "float64": _Loop((_Tile(64, 64, 4, 1.5e5, 2), _Tile(32, 32, 4, 0.8e5, 4)), 0.3, FLOAT32_LOADS),
    "ieee": _Loop(
        (
            _Tile(64, 128, 4, 4.85e5, 2),
            _Tile(64, 64, 4, 3.37e5, 4),
            _Tile(32, 64, 4, 2.42e5, 4),
            _Tile(32, 32, 4, 1.76e5, 8),
        ),
        0.32,
        FLOAT32_LOADS,
        stored=5.3e3,
        fill_us=0.26,
    ),
    "tf32x3": _Loop(
        (
            _Tile(128, 128, 8, 8.6e5, 1),
            _Tile(64, 64, 4, 6.0e5, 3),
            _Tile(64, 32, 4, 4.0e5, 4),
            _Tile(32, 64, 4, 5.0e5, 3),
            _Tile(32, 32, 4, 1.6e5, 4),
            _Tile(64, 16, 4, 5.9e5, 5),
            _Tile(16, 64, 4, 2.8e5, 5),
        ),
        0.46,
        _loads({16: 4.8e4, 8: 2.8e4, 4: 2.1e4}, {16: 5.1e4, 8: 6.0e4, 4: 3.3e4}),
        stored=3.6e3,
        fill_us=0.57,
    ),
    "aligned": _Loop(_on_tensor_cores("aligned"), 0.31, _loads({16: 9.0e4}, {16: 9.0e4}), stored=HIDDEN),
    "unaligned tf32": _Loop(
        _on_tensor_cores("unaligned tf32"),
        0.29,
        _loads({16: 4.6e4, 8: 5.2e4, 4: 3.8e4}, {16: 1.0e5, 8: 7.6e4, 4: 4.0e4}),
        stored=HIDDEN,
        fill_us=0.33,
    ),
    "unaligned": _Loop(
        _on_tensor_cores("unaligned"),
        0.24,
        _loads({16: 1.8e5, 8: 7.6e4, 4: 5.1e4}, {16: 5.6e4, 8: 4.4e4, 4: 3.0e4}),
        stored=5.9e3,
        fill_us=1.74,
        memory=2.38e6,
    ),
    "through registers": _Loop(
        _on_tensor_cores("through registers"),
        0.56,
        _loads(
            {16: 1.3e5, 8: 9.3e4, 4: 3.2e4, 2: 2.5e4, 1: 9.4e3}, {16: 3.7e4, 8: 8.9e4, 4: 4.5e4, 2: 3.0e4, 1: 9.4e3}
        ),
        stored=3.1e3,
        fill_us=0.51,
        memory=2.78e6,
    ),
}
NARROW_LOAD = 4  # bytes: with such loads, the products of tf32x3 whose tiles have 64 rows take three times as long
LEAST_LOAD = 4  # bytes: cp.async copies no less; a smaller load goes through registers, and takes shorter steps
TURNED = 2**27  # from this many products on, a copy pays in float8 and tf32
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # parts of a sum


def pointers(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    capability: tuple[int, int],
    multiprocessors: int,
    precision: Precision = "ieee",
    loads: Loads = ROW_MAJOR,
    copied: tuple[int, ...] = (),
) -> Configuration:
    """Return the general kernel for a [m, k] @ b [k, n], whose elements are loaded as ``loads`` say.

    With "tf32x3", operands of ``copied`` elements each may be copied for loads of 16 bytes. Its tiles fit the 99 KiB of
    shared memory of sm_86 and sm_89.
    """
    hopper = capability[0] == 9
    limit, how = _pointers(m, n, k, dtype, hopper, multiprocessors, precision, loads)
    if (dtype, precision) != ("float32", "tf32x3") or _narrowest(loads) == 16:
        return how
    whole = Load(16, loads[0].along_k), Load(16, loads[1].along_k)
    time, wide = _pointers(m, n, k, dtype, hopper, multiprocessors, precision, whole)
    return replace(wide, copies=True) if _copying_us(copied, dtype) + time < limit else how


def _pointers(
    m: int,
    n: int,
    k: int,
    dtype: str,
    hopper: bool,
    multiprocessors: int,
    precision: Precision,
    loads: Loads,
) -> tuple[float, Configuration]:
    """Return the shortest estimated time in us, and its configuration."""
    choices = pointers_choices(m, n, k, dtype, hopper, multiprocessors, precision, loads)
    us, how = min(choices, key=itemgetter(0))
    return max(us, (m * k + k * n) * ITEMSIZE[dtype] / _loop(dtype, precision, loads).memory), how


def _loop(dtype: str, precision: Precision, loads: Loads) -> _Loop:
    if dtype == "float64":
        return LOOPS[dtype]
    if dtype == "float32" and precision != "tf32":
        return LOOPS[precision]
    if _narrowest(loads) == 16:
        return LOOPS["aligned"]
    if dtype == "float32":
        return LOOPS["unaligned tf32"]
    return LOOPS["unaligned" if _narrowest(loads) >= LEAST_LOAD else "through registers"]


def pointers_choices(
    m: int,
    n: int,
    k: int,
    dtype: str,
    hopper: bool,
    multiprocessors: int,
    precision: Precision,
    loads: Loads,
) -> list[tuple[float, Configuration]]:
    """Return all configurations of the kernel "pointers" with estimated times in us, if memory is not the limit."""
    itemsize, narrowest, loop = ITEMSIZE[dtype], _narrowest(loads), _loop(dtype, precision, loads)
    thrice = dtype == "float32" and precision == "tf32x3"
    # Without wgmma, the parts of both tiles are in registers. So are tiles that cp.async cannot copy.
    halved = narrowest < LEAST_LOAD or (thrice and not hopper)
    block_k = K_BYTES // (2 if halved else 1) // itemsize
    a_rate, b_rate = (loop.loaded[load] for load in loads)

    def microseconds(tile: _Tile, split: int) -> float:
        rows, cols = tile.block_m, tile.block_n
        steps = _cdiv(_cdiv(k, block_k), split)
        multiplying = 2 * rows * cols * block_k / tile.rate
        loading = (rows / a_rate + cols / b_rate) * block_k * itemsize
        busy = max(multiplying, loading)  # time of a step in which a program keeps the multiprocessor busy

        def together(programs: int) -> float:
            """Return the time of ``programs`` programs on one multiprocessor; one computes while others wait."""
            if programs == 0:
                return 0.0
            step = math.cbrt((loop.step_us + multiplying / 2) ** 3 + (programs * busy) ** 3)  # nearly the larger one
            return loop.fill_us + steps * step + rows * cols / loop.stored

        here = _cdiv(_cdiv(m, rows) * _cdiv(n, cols) * split, multiprocessors)  # programs of a multiprocessor
        turns, rest = divmod(here, tile.programs)
        us = turns * together(tile.programs) + together(rest)
        return us + _joining_us(split, rows * cols, m * n)

    def how(tile: _Tile, split: int) -> Configuration:
        rows, cols = tile.block_m, tile.block_n
        return Configuration("pointers", rows, cols, block_k, stages=3, warps=tile.warps, group_m=8, split_k=split)

    splits = [split for split in SPLITS if split == 1 or k >= 2 * split * block_k]
    tiles = [tile for tile in loop.tiles if not thrice or narrowest > NARROW_LOAD or tile.block_n < 64]
    return [(microseconds(tile, split), how(tile, split)) for tile in tiles for split in splits]


def copy_pays(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    copied: tuple[int, ...],
    multiprocessors: int,
    loads: Loads,
) -> bool:
    """Return whether it is faster to copy operands, of ``copied`` elements each, than to use the kernel "pointers"."""
    itemsize = ITEMSIZE[dtype]
    if itemsize != 2:  # the general kernel turns tiles around that do not lie along k, which the estimate does not see
        return m * n * k >= TURNED
    product_us, how = _hopper(m, n, k, itemsize, multiprocessors, roles=False)
    limit, _ = _pointers(m, n, k, dtype, True, multiprocessors, "ieee", loads)
    return _copying_us(copied, dtype) - (EARLY_US if how.early else 0) + product_us < limit


def _copying_us(copied: tuple[int, ...], dtype: str) -> float:
    """Return the time in us that is added by copies of operands of ``copied`` elements each."""
    size = sum(copied) * ITEMSIZE[dtype]
    return LAUNCH_US + size / COPIED_BYTES + max(0, size - CACHED_BYTES) / MISSED_BYTES


def _joining_us(split: int, area: int, elements: int) -> float:
    """Return the time in us to add up ``split`` partial sums of ``elements``, those of a tile by its last program."""
    if split == 1:
        return 0.0
    return JOIN_US + PART_US * split + max(4 * (split + 1) * area / READ_BYTES, 2 * 4 * split * elements / PART_BYTES)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
