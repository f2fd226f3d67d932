"""Softmax in Triton. Rows that fit into registers are read once; longer rows are read twice, with an online sum.

The online sum keeps the largest x so far and the sum relative to it, and rescales the sum when a larger x is read
(Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3). Each lane keeps its own pair until the end of the row, so
the loop contains no reduction across lanes. A long row belongs to one program, so that the second read comes from the
cache; where there are too few rows to occupy the GPU, it is divided into slices, in two launches.

Rows are loaded and stored in vectors of 16 bytes wherever their lengths allow it. A row whose length is not a multiple
of 16 bytes begins and ends inside a vector: what lies before the first whole vector and after the last one, its edges,
is loaded element by element.

Backward computes dx = y (dy - sum y dy) from y and dy in the same ways; 16-bit rows stay packed until they are used.
Eviction hints tell the cache which data is read again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..second_derivative import no_second_derivative
from ..triton_device import l2_bytes, multiprocessors, on_device_of, require_floats, require_gpu
from ._triton_backward import _backward_long, _backward_rows
from ._triton_forward import _softmax_long, _softmax_rows
from ._triton_plan import HELD, PAIR_TILE, PROGRAM_BYTES, Asked, Long, Rows, access, backward_warps, forward, long

LONGEST = 2**31 - 32_768  # columns of a long row; beyond, indices of the last step may need more than 32 bits


def softmax(x: Tensor, *, BLOCK: int | None = None, ROWS: int | None = None, num_warps: int | None = None) -> Tensor:
    """Compute the softmax of each row of ``x``; shapes and dtypes as in ``kernels.softmax``. ``y`` is contiguous.

    An ``x`` whose rows are not contiguous is copied first. The result can be differentiated once.

    Args:
        x: a tensor.
        BLOCK: columns that a program of the forward holds at once, a power of 2. A row that has more is read twice, in
            steps of so many columns. None: chosen by the length of the row and the size of an element.
        ROWS: rows of a program that holds whole rows, a power of 2; None: chosen likewise.
        num_warps: warps of a program of the forward, a power of 2; None: chosen likewise.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.

    """
    if x.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Differentiable.apply(x, BLOCK, ROWS, num_warps)
        return result
    require_gpu(x)
    require_floats(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    flat = _flat(x)
    with on_device_of(x):
        _launch(flat, y, Asked(BLOCK, ROWS, num_warps))
    return y


def _flat(x: Tensor) -> Tensor:
    """Return ``x`` as a matrix of contiguous rows, copied if it must be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _rows_of(x: Tensor) -> Rows:
    rows, cols = x.shape
    return Rows(rows, cols, x.stride(0), x.element_size(), multiprocessors(x), l2_bytes(x))


def _arithmetic(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _launch(x: Tensor, y: Tensor, asked: Asked) -> None:
    given = _rows_of(x)
    rows, cols = given.rows, given.cols
    plan = forward(given, asked)
    unit = 1 if plan.access.edges else plan.access.unit
    if isinstance(plan, Long):
        runs = x if plan.slices == 1 else _runs(x, 2 * plan.programs)
        for launch in (0,) if plan.slices == 1 else (1, 2):
            _softmax_long[(plan.programs,)](
                x,
                y,
                runs,
                x.stride(0) // unit,
                rows * plan.slices,
                cols // unit,
                plan.slices,
                plan.steps,
                ARITHMETIC=_arithmetic(x),
                STEP=plan.step,
                UNIT=plan.access.unit,
                EDGES=plan.access.edges,
                LONG=cols > LONGEST,
                LAUNCH=launch,
                SLICES=triton.next_power_of_2(plan.slices),
                LOOP=plan.programs < rows * plan.slices,
                num_warps=plan.warps,
            )
        return
    _softmax_rows[(triton.cdiv(rows, plan.rows),)](
        x,
        y,
        x.stride(0) // unit,
        rows,
        cols // unit,
        ARITHMETIC=_arithmetic(x),
        ROWS=plan.rows,
        STEP=plan.step,
        STEPS=plan.steps,
        SURE=plan.sure,
        READS=plan.reads,
        UNIT=plan.access.unit,
        EDGES=plan.access.edges,
        num_warps=plan.warps,
    )


def _runs(x: Tensor, count: int) -> Tensor:
    """Return memory for ``count`` results of slices, in the arithmetic type."""
    return torch.empty(count, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)


def _backward(y: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of ``x``, given the contiguous ``y`` and the gradient ``dy`` of ``y``."""
    dx = torch.empty_like(y)
    if y.numel() == 0:
        return dx
    flat = _flat(dy)
    with on_device_of(y):
        _launch_backward(y, flat, dx)
    return dx


def _launch_backward(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    given = _rows_of(dy)
    rows, cols = given.rows, given.cols
    block = triton.next_power_of_2(cols)
    if block > HELD[given.itemsize]:
        plan = long(given, 2)
        unit = 1 if plan.access.edges else plan.access.unit
        runs = y if plan.slices == 1 else _runs(y, plan.programs)
        for launch in (0,) if plan.slices == 1 else (1, 2):
            _backward_long[(plan.programs,)](
                y,
                dy,
                dx,
                runs,
                dy.stride(0) // unit,
                rows * plan.slices,
                cols // unit,
                plan.slices,
                plan.steps,
                ARITHMETIC=_arithmetic(y),
                STEP=plan.step,
                UNIT=plan.access.unit,
                EDGES=plan.access.edges,
                LONG=cols > LONGEST,
                LAUNCH=launch,
                SLICES=triton.next_power_of_2(plan.slices),
                LOOP=plan.programs < rows * plan.slices,
                num_warps=plan.warps,
            )
        return
    together = max(1, PAIR_TILE // block)
    if access(given, 1).edges and given.bytes > PROGRAM_BYTES // 2:
        together = 1
    loads = access(given, together)
    unit = 1 if loads.edges else loads.unit
    _backward_rows[(triton.cdiv(rows, together),)](
        y,
        dy,
        dx,
        dy.stride(0) // unit,
        rows,
        cols // unit,
        ARITHMETIC=_arithmetic(y),
        ROWS=together,
        BLOCK=block,
        WHOLE=cols == block and rows % together == 0,
        PACKED=y.is_cuda and y.element_size() == 2,  # the interpreter has no assembly
        UNIT=loads.unit,
        EDGES=loads.edges,
        num_warps=backward_warps(block * together, given.wide),
    )


class _Differentiable(torch.autograd.Function):
    """``softmax`` for autograd, which saves y only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int | None, rows: int | None, warps: int | None) -> Tensor:
        y = softmax(x, BLOCK=block, ROWS=rows, num_warps=warps)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor], dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _backward(saved[0], dy), None, None, None
