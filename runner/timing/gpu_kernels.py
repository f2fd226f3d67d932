"""Kernels of one warp: a timestamp that writes what time it is, a spin of known length, and two that do nothing.

In Triton, so that they need no compiler on the machine and run on whatever GPU Triton runs on.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _clock():
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _globaltimer():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["slot"])  # one binary for every slot: another would have another constant
def timestamp(slots, slot):
    """Write the GPU's nanoseconds to ``slots[slot]`` and the multiprocessor's cycles to the next one."""
    tl.store(slots + slot, _globaltimer())
    tl.store(slots + slot + 1, _clock())


@triton.jit(do_not_specialize=["cycles"])
def spin(cycles):
    """Keep one warp busy for ``cycles`` of its multiprocessor, int64."""
    start = _clock()
    while _clock() - start < cycles:
        pass


@triton.jit
def null():
    """Do nothing: what its launch reads is the constant of an instrument."""


@triton.jit
def boundary():
    """Do nothing, under a name of its own: it parts a call's records from those of its preparation."""


@triton.jit
def ticks(times, COUNT: tl.constexpr):
    """Write ``COUNT`` readings of the GPU's nanoseconds, one after the other: its ticks show between them."""
    for index in range(COUNT):
        tl.store(times + index, _globaltimer())
