"""Kernels of one warp: timestamps, a spin of known length, and empty kernels.

They are in Triton, so that they need no compiler on the machine and run on every GPU that Triton supports.
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


@triton.jit(do_not_specialize=["index"])  # one binary for every index, since another binary would have another offset
def timestamp(buffer, index):
    """Write the GPU's time in ns to ``buffer[index]`` and the multiprocessor's cycles to ``buffer[index + 1]``."""
    tl.store(buffer + index, _globaltimer())
    tl.store(buffer + index + 1, _clock())


@triton.jit(do_not_specialize=["cycles"])
def spin(cycles):
    """Keep one warp busy for ``cycles`` of its multiprocessor, int64."""
    start = _clock()
    while _clock() - start < cycles:
        pass


@triton.jit
def null():
    """Do nothing. The time of its launch shows the timer's offset."""


@triton.jit
def boundary():
    """Do nothing. Its name separates the records of a call from its preparation."""


@triton.jit
def ticks(times, COUNT: tl.constexpr):
    """Write ``COUNT`` consecutive readings of the GPU's timer, in ns, which show its step."""
    for index in range(COUNT):
        tl.store(times + index, _globaltimer())
