"""Which kernel of ``triton.py`` computes a product, and in what tiles: a plain function of sizes, type and GPU.

Nothing is timed when a product is asked for. Few tiles are worth having, and which of them a product wants follows from
how many of them it is cut into: a GPU works in waves of one tile a multiprocessor, and a wave that is nearly empty
takes as long as a full one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

HOPPER_SHARED = 232_448 - 1024  # bytes of shared memory that a program may have, less what barriers take
K_BYTES = 128  # of a row of a tile: what the widest swizzle of shared memory spans
CORE_BYTES = 4096 * 1.7e3  # of a, for each of b's columns, that a multiprocessor multiplies in 1 us
PART_BYTES = 3e6  # of part sums that all of them write, and read again, in 1 us, from and to L2
LAUNCH_US = 3.0  # of the kernel that adds them up

ITEMSIZE = {"float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes


@dataclass(frozen=True, slots=True)
class Configuration:
    """A kernel and its tiles: ``block_m`` x ``block_n`` of y at a time, ``block_k`` terms a step."""

    kernel: Literal["descriptors", "skinny", "pointers"]
    block_m: int
    block_n: int
    block_k: int
    stages: int  # steps that are loaded ahead, this one included
    warps: int
    group_m: int = 1  # rows of tiles that are walked together
    split_k: int = 1  # parts that a sum is cut into
    halves: bool = False  # y is stored in two halves, which leaves shared memory for one more stage

    def __str__(self) -> str:
        tile = f"{self.kernel} {self.block_m}x{self.block_n}x{self.block_k}, {self.stages} stages, {self.warps} warps"
        group = f", groups of {self.group_m}" if self.group_m > 1 else ""
        return tile + group + (f", k in {self.split_k} parts" if self.split_k > 1 else "")


@dataclass(frozen=True, slots=True)
class _Tile:
    block_m: int
    block_n: int
    warps: int
    rate: float  # of the tensor cores' own that its loop reaches: small tiles load more for each product


# A wgmma has 64 rows, four warps, and at most 256 columns; the accumulator takes up to 128 registers a thread.
TILES = (_Tile(128, 256, 8, 1.0), _Tile(128, 128, 8, 0.85), _Tile(64, 128, 4, 0.75), _Tile(64, 64, 4, 0.55))
SKINNY_ROWS = 128  # of the narrow operand at most: from there on its own tile is no smaller than the wide one's


@lru_cache(maxsize=4096)
def configuration(
    m: int, n: int, k: int, dtype: str, *, capability: tuple[int, int], multiprocessors: int, tf32: bool = False
) -> Configuration:
    """For a [m, k] @ b [k, n], both ``dtype``; ``tf32``: whether float32 may be rounded to it."""
    exact = dtype == "float64" or (dtype == "float32" and not tf32)
    if capability[0] != 9 or exact:
        return pointers(m, n, dtype, tf32=tf32)
    if min(m, n) <= SKINNY_ROWS and max(m, n) > SKINNY_ROWS:
        return _skinny(min(m, n), max(m, n), k, ITEMSIZE[dtype], multiprocessors)
    return _wave(m, n, k, ITEMSIZE[dtype], multiprocessors)


def _wave(m: int, n: int, k: int, itemsize: int, multiprocessors: int) -> Configuration:
    """The tile, and the parts of k, whose waves are over first."""

    def microseconds(choice: tuple[_Tile, int]) -> float:
        tile, split = choice
        programs = _cdiv(m, tile.block_m) * _cdiv(n, tile.block_n) * split
        of_tile = tile.block_m * tile.block_n * _cdiv(k, split) * itemsize / (CORE_BYTES * tile.rate)
        joining = LAUNCH_US + 2 * 4 * split * m * n / PART_BYTES if split > 1 else 0.0
        return _cdiv(programs, multiprocessors) * of_tile + joining

    blocks = _cdiv(k * itemsize, K_BYTES)
    splits = [split for split in (1, 2, 4, 8) if split == 1 or blocks >= 8 * split]
    tile, split = min(((tile, split) for tile in TILES for split in splits), key=microseconds)
    stored = 4 if split > 1 or itemsize == 4 else 2
    halves = tile.block_n == 256
    store = tile.block_m * tile.block_n // (2 if halves else 1) * stored
    stage = (tile.block_m + tile.block_n) * K_BYTES
    return Configuration(
        kernel="descriptors",
        block_m=tile.block_m,
        block_n=tile.block_n,
        block_k=K_BYTES // itemsize,
        stages=min(6, (HOPPER_SHARED - store) // stage),
        warps=tile.warps,
        # As many rows of tiles as make what runs together nearly square: 16 x 128 rows by 8 x 256 columns.
        group_m=16 if tile.block_n == 256 else 8,
        split_k=split,
        halves=halves,
    )


def _skinny(narrow: int, wide: int, k: int, itemsize: int, multiprocessors: int) -> Configuration:
    """64 rows of the wide operand a program; it is read once, so what counts is how much of it is on its way."""
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
        stages=min(4, HOPPER_SHARED // ((64 + block_m) * k_bytes)),
        warps=4,
        split_k=split,
    )


def pointers(m: int, n: int, dtype: str, *, tf32: bool) -> Configuration:
    """The general kernel. Its tiles fit the 99 KiB of shared memory of sm_86 and sm_89."""
    if dtype == "float64":
        return Configuration("pointers", 32, 32, 16, stages=2, warps=4, group_m=8)
    block_k = 16 if dtype == "float32" and not tf32 else K_BYTES // ITEMSIZE[dtype]
    if _cdiv(m, 128) * _cdiv(n, 128) < 64:
        return Configuration("pointers", 64, 64, block_k, stages=3, warps=4, group_m=8)
    return Configuration("pointers", 128, 128, block_k, stages=3, warps=8, group_m=8)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
