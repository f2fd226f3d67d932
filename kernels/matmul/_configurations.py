"""Choose the kernel of ``triton.py`` and its tiles for a product, by a plain function of sizes, dtype and GPU.

Nothing is timed during a call. Only a few tile shapes are useful, and the best one follows from the number of tiles: a
GPU works in waves of one tile for each multiprocessor, and a wave that is nearly empty takes as long as a full one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

HOPPER_SHARED = 232_448 - 1024  # bytes of shared memory of a multiprocessor for its programs, without barriers
K_BYTES = 128  # bytes of a row of a tile along k: the span of the widest swizzle of shared memory
CORE_BYTES = 4096 * 1.56e3  # bytes of a, for each column of b, that a multiprocessor multiplies in 1 us
STORE_ELEMENTS = 128 * 128  # elements of y that a multiprocessor stores in 1 us; a lone program multiplies nothing then
PART_BYTES = 3e6  # bytes of partial sums that all multiprocessors write to L2 and read again in 1 us
LAUNCH_US = 3.0  # time of the kernel that adds the partial sums

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
    halves: bool = False  # store y in two halves, which leaves shared memory for one more stage

    def __str__(self) -> str:
        tile = f"{self.kernel} {self.block_m}x{self.block_n}x{self.block_k}, {self.stages} stages, {self.warps} warps"
        group = f", groups of {self.group_m}" if self.group_m > 1 else ""
        pair = f", {self.programs} a multiprocessor" if self.programs > 1 else ""
        return tile + group + pair + (f", k in {self.split_k} parts" if self.split_k > 1 else "")


@dataclass(frozen=True, slots=True)
class _Tile:
    block_m: int
    block_n: int
    warps: int
    rate: float  # share of the tensor cores' rate that the loop reaches; small tiles load more for each product
    programs: int = 1
    k_bytes: int = K_BYTES


# A wgmma has 64 rows, four warps and at most 256 columns; its accumulator takes up to 128 registers of a thread.
# Small tiles use longer steps: with few products in a step, the waits for tiles and their release dominate.
TILES = (
    _Tile(128, 256, 8, 1.0),
    _Tile(128, 128, 4, 0.92, programs=2),
    _Tile(128, 128, 8, 0.85),
    _Tile(64, 128, 4, 0.75, k_bytes=2 * K_BYTES),
    _Tile(64, 64, 4, 0.55, k_bytes=2 * K_BYTES),
    _Tile(64, 32, 4, 0.3, k_bytes=2 * K_BYTES),
)
STORED = 8  # n must be a multiple of this in 16 bits: a descriptor stores rows of a multiple of 16 bytes
FEWEST_STEPS = 8  # along k for kernel "roles": more than the parts that y is stored in, and the slots of the ring
LONGEST = 2**31 - 256  # of m, n and k; beyond, indices in the last tile may need more than 32 bits
SKINNY_ROWS = 128  # rows of the narrow operand, at most; beyond, its tile is no smaller than that of the wide operand


@lru_cache(maxsize=4096)
def configuration(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    capability: tuple[int, int],
    multiprocessors: int,
    tf32: bool = False,
    roles: bool = False,
) -> Configuration:
    """Return the configuration for a [m, k] @ b [k, n].

    Args:
        m: rows of a.
        n: columns of b.
        k: columns of a.
        dtype: of both, a key of ``ITEMSIZE``.
        capability: compute capability of the GPU.
        multiprocessors: number of multiprocessors of the GPU.
        tf32: float32 may be rounded to tf32.
        roles: kernels with specialized warps are available.

    """
    exact = dtype == "float64" or (dtype == "float32" and not tf32)
    if capability[0] != 9 or exact or max(m, n, k) > LONGEST:
        return pointers(m, n, dtype, tf32=tf32)
    if min(m, n) <= SKINNY_ROWS and max(m, n) > SKINNY_ROWS:
        return _skinny(min(m, n), max(m, n), k, ITEMSIZE[dtype], multiprocessors)
    itemsize = ITEMSIZE[dtype]
    if roles and itemsize <= 2 and n % STORED == 0 and _cdiv(k * itemsize, K_BYTES) >= FEWEST_STEPS:
        # group_m: of 4 to 16, 12 was the fastest or within 0.2 % of it for nine large shapes in two dtypes. The
        # exception is 16384 cubed in float16, where 8 was 1.2 % faster, in a separate run.
        chosen = Configuration("roles", 128, 256, K_BYTES // itemsize, stages=4, warps=4, group_m=12)
        if _cdiv(m, chosen.block_m) * _cdiv(n, chosen.block_n) >= multiprocessors:
            return chosen
    return _wave(m, n, k, itemsize, multiprocessors)


def _wave(m: int, n: int, k: int, itemsize: int, multiprocessors: int) -> Configuration:
    """Return the tile, and the number of parts of k, with the shortest estimated time."""

    def microseconds(choice: tuple[_Tile, int]) -> float:
        tile, split = choice
        items = _cdiv(m, tile.block_m) * _cdiv(n, tile.block_n) * split
        # Programs that share a multiprocessor share its tensor cores, and each stores while the other multiplies.
        area = tile.block_m * tile.block_n
        multiplying = tile.programs * area * _cdiv(k, split) * itemsize / (CORE_BYTES * tile.rate)
        storing = area / STORE_ELEMENTS if tile.programs == 1 else 0.0
        joining = LAUNCH_US + 2 * 4 * split * m * n / PART_BYTES if split > 1 else 0.0
        return _cdiv(items, tile.programs * multiprocessors) * (multiplying + storing) + joining

    blocks = _cdiv(k * itemsize, K_BYTES)
    splits = [split for split in (1, 2, 4, 8) if split == 1 or blocks >= 8 * split]
    tile, split = min(((tile, split) for tile in TILES for split in splits), key=microseconds)
    stored = 4 if split > 1 or itemsize == 4 else 2
    halves = tile.block_n == 256 or tile.programs > 1
    store = tile.block_m * tile.block_n // (2 if halves else 1) * stored
    stage = (tile.block_m + tile.block_n) * tile.k_bytes
    return Configuration(
        kernel="descriptors",
        block_m=tile.block_m,
        block_n=tile.block_n,
        block_k=tile.k_bytes // itemsize,
        stages=min(6 if tile.k_bytes == K_BYTES else 4, (HOPPER_SHARED // tile.programs - store) // stage),
        warps=tile.warps,
        group_m=16 if tile.programs > 1 else 8,
        split_k=split,
        programs=tile.programs,
        halves=halves,
    )


def _skinny(narrow: int, wide: int, k: int, itemsize: int, multiprocessors: int) -> Configuration:
    """Return the skinny kernel: 64 rows of the wide operand for each program.

    The wide operand is read once, so the number of bytes in flight decides.
    """
    block_m = max(16, 1 << (narrow - 1).bit_length())
    k_bytes = 512 if block_m <= 32 else 256
    tiles = _cdiv(wide, 64)
    split = 1
    while 2 * split * tiles <= multiprocessors and k * itemsize >= 8 * split * k_bytes:
        split *= 2
    return Configuration(
        kernel="skinny",
        block_m=block_m,
        block_n=64,
        block_k=k_bytes // itemsize,
        stages=min(4 if block_m <= 32 else 6, HOPPER_SHARED // ((64 + block_m) * k_bytes)),
        warps=4,
        split_k=split,
    )


def pointers(m: int, n: int, dtype: str, *, tf32: bool) -> Configuration:
    """Return the general kernel for y [m, n]. Its tiles fit the 99 KiB of shared memory of sm_86 and sm_89."""
    if dtype == "float64":
        return Configuration("pointers", 64, 64, 16, stages=3, warps=4, group_m=8)
    if dtype == "float32" and not tf32:
        return Configuration("pointers", 64, 128, 32, stages=3, warps=4, group_m=8)
    block_k = K_BYTES // ITEMSIZE[dtype]
    if _cdiv(m, 128) * _cdiv(n, 128) < 64:
        return Configuration("pointers", 64, 64, block_k, stages=3, warps=4, group_m=8)
    return Configuration("pointers", 128, 128, block_k, stages=3, warps=8, group_m=8)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
