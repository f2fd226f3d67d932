"""The calls that are timed, on existing buffers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runner.timing.gpu_kernels import spin

Call = Callable[[], object]
MHZ, LAUNCH_US = 1980, 0.75  # convert us to cycles, the same in every process; an empty kernel takes 0.6 to 0.9 us


def gelu(count: int, times: int = 1) -> Call:
    """Return a call of GELU (tanh) of ``count`` float32 elements, ``times`` in a row."""
    x = torch.randn(count, device="cuda")
    y = torch.empty_like(x)

    def call() -> None:
        for _ in range(times):
            torch._C._nn.gelu(x, approximate="tanh", out=y)

    return call


def softmax(rows: int, cols: int) -> Call:
    """Return a call of softmax of each row, float32."""
    x = torch.randn(rows, cols, device="cuda")
    y = torch.empty_like(x)
    return lambda: torch.softmax(x, 1, out=y)


def matmul(size: int) -> Call:
    """Return a call of the product of two square matrices, bfloat16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def spinning(us: float) -> Call:
    """Return a call of a spin kernel of about ``us``, its launch included."""
    cycles = round((us - LAUNCH_US) * MHZ)
    return lambda: spin[(1,)](cycles, num_warps=1)
