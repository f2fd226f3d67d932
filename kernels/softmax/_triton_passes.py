"""Softmax in Triton in so many passes over each row, to show what they cost: teaching steps towards ``triton.py``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_device import require_floats, require_gpu
from ..triton_launch import each_time, planned, repeatable

BLOCK = 4096  # columns of a step


@triton.jit
def _passes(x_ptr, y_ptr, stride, cols, ONLINE: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    # A lane has its own numbers until the end of a pass.
    largest = tl.full([BLOCK], -float("inf"), ARITHMETIC)
    total = tl.zeros([BLOCK], ARITHMETIC)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + row * stride + start + lane, mask=start + lane < cols, other=-float("inf")).to(ARITHMETIC)
        now = tl.maximum(largest, x)
        if ONLINE:
            # The sum is relative to the largest x so far, and is scaled down where that grows.
            base = tl.where(now == -float("inf"), 0.0, now)
            total = total * tl.exp(largest - base) + tl.exp(x - base)
        largest = now
    high = tl.max(largest, 0)
    if ONLINE:
        total = total * tl.exp(largest - high)
    else:
        for start in range(0, cols, BLOCK):
            x = tl.load(x_ptr + row * stride + start + lane, mask=start + lane < cols, other=-float("inf"))
            total += tl.exp(x.to(ARITHMETIC) - high)
    whole = tl.sum(total, 0)
    for start in range(0, cols, BLOCK):
        inside = start + lane < cols
        x = tl.load(x_ptr + row * stride + start + lane, mask=inside).to(ARITHMETIC)
        y = tl.exp(x - high) / whole
        tl.store(y_ptr + row * cols + start + lane, y.to(y_ptr.dtype.element_ty), mask=inside)


@planned
def softmax_in_passes(x: Tensor, online: bool) -> Tensor:
    """Compute the softmax of each row of ``x`` in three passes that read it; ``online``: in two."""
    require_gpu(x)
    require_floats(x)
    y = each_time(torch.empty, *x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        flat = x.reshape(-1, x.shape[-1])
        flat = flat if flat.stride(1) == 1 else flat.contiguous()
        arithmetic = tl.float64 if x.dtype == torch.float64 else tl.float32
        repeatable(_passes)[(flat.shape[0],)](
            flat, y, flat.stride(0), flat.shape[1], ONLINE=online, ARITHMETIC=arithmetic, BLOCK=BLOCK, num_warps=8
        )
    return y
