"""Sizes of blocks of the Triton kernels, by GPU, dtype and d. Measured on an H100; see ``benchmarks/kernels``."""

from __future__ import annotations

from typing import NamedTuple


class Blocks(NamedTuple):
    """How a kernel divides its work."""

    queries: int  # in a block
    keys: int  # in a block
    warps: int
    stages: int  # blocks in flight, the current one included


HOPPER = {  # 16 bits, by the kernel and d
    ("forward", 64): Blocks(64, 128, 4, 2),
    ("forward", 128): Blocks(64, 64, 4, 3),
    ("keys", 64): Blocks(128, 64, 4, 2),
    ("keys", 128): Blocks(64, 64, 4, 2),
    ("queries", 64): Blocks(64, 64, 4, 2),
    ("queries", 128): Blocks(64, 64, 4, 2),
}
# Bytes of shared memory of a block of threads: sm_80, 90 and 100 have more; sm_86, 89 and 120 have 99 KiB.
ROOMY = 160 * 1024
L2_SHARE, FORWARD_SHARE = 4 * 2**20, 16 * 2**20  # bytes of keys and values of the heads whose programs run together


def together(heads: int, length: int, d: int, itemsize: int, share: int = L2_SHARE) -> int:
    """Return of how many heads programs run together: what they share, 2 [length, d] a head, stays in the L2 cache."""
    return max(1, min(heads, share // (2 * length * d * itemsize)))


def forward_blocks(hopper: bool, itemsize: int, d: int) -> Blocks:
    """Return the blocks of the forward, for ``d`` rounded up to a power of 2."""
    if itemsize == 4:
        return Blocks(64, 32, 4, 2) if d <= 64 else Blocks(32, 32, 8, 2)
    if hopper:
        return HOPPER["forward", max(d, 64)]
    return Blocks(128, 64, 4, 3) if d <= 64 else Blocks(128, 64, 8, 3)


def keys_blocks(hopper: bool, itemsize: int, d: int, shared: int) -> Blocks:
    """Return the blocks of the kernel of dk and dv; ``shared`` is the memory that a block of threads may have."""
    if itemsize == 4:
        return Blocks(32, 32, 4, 1) if d <= 64 else Blocks(32, 32, 8, 1) if shared >= ROOMY else Blocks(16, 16, 4, 1)
    if hopper:
        return HOPPER["keys", max(d, 64)]
    return Blocks(32, 128, 4, 2) if d <= 64 else Blocks(32, 64, 8, 2)


def queries_blocks(hopper: bool, itemsize: int, d: int) -> Blocks:
    """Return the blocks of the kernel of dq alone."""
    if itemsize == 4:
        return Blocks(32, 32, 4, 1) if d <= 64 else Blocks(32, 32, 8, 1)
    return HOPPER["queries", max(d, 64)] if hopper else Blocks(64, 32, 4, 2)
