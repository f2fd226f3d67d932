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
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..row_vectors import LONGEST, Rows, access
from ..triton_device import arithmetic, l2_bytes, multiprocessors, require_floats, require_gpu
from ..triton_launch import each_time, planned, repeatable
from ._triton_backward import _backward_long, _backward_rows
from ._triton_forward import _softmax_long, _softmax_rows
from ._triton_plan import ALONE_BYTES, PAIR_TILE, Asked, Long, backward_warps, forward, long, longest_held


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
        return apply(_Differentiable, x, (BLOCK, ROWS, num_warps))
    return _forward(x, (BLOCK, ROWS, num_warps))


@planned
def _forward(x: Tensor, asked: tuple[int | None, int | None, int | None]) -> Tensor:
    require_gpu(x)
    require_floats(x)
    y = each_time(torch.empty, *x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    flat = _flat(x)
    _launch(flat, y, Asked(*asked))
    return y


def _flat(x: Tensor) -> Tensor:
    """Return ``x`` as a matrix of contiguous rows, copied if it must be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _rows_of(x: Tensor) -> Rows:
    rows, cols = x.shape
    return Rows(rows, cols, x.stride(0), x.element_size(), multiprocessors(x), l2_bytes(x))


def _launch(x: Tensor, y: Tensor, asked: Asked) -> None:
    given = _rows_of(x)
    plan = forward(given, asked)
    if isinstance(plan, Long):
        _launch_long(_softmax_long, plan, given, (x, y), results=2)
        return
    unit = plan.access.stride_unit
    repeatable(_softmax_rows)[(triton.cdiv(given.rows, plan.rows),)](
        x,
        y,
        given.stride // unit,
        given.rows,
        given.cols // unit,
        ARITHMETIC=arithmetic(x),
        ROWS=plan.rows,
        STEP=plan.step,
        STEPS=plan.steps,
        SURE=plan.sure,
        READS=plan.reads,
        UNIT=plan.access.unit,
        EDGES=plan.access.edges,
        num_warps=plan.warps,
    )


def _launch_long(kernel: Any, plan: Long, given: Rows, tensors: tuple[Tensor, ...], *, results: int) -> None:
    """Launch ``kernel`` on ``tensors`` once, or twice if rows have slices.

    The first launch then stores ``results`` numbers of each slice, and the second one reads them.
    """
    x, unit = tensors[0], plan.access.stride_unit
    runs = x  # unused if rows have no slices
    if plan.slices > 1:
        stored = torch.promote_types(x.dtype, torch.float32)
        runs = each_time(torch.empty, results * plan.programs, dtype=stored, device=x.device)
    for launch in (0,) if plan.slices == 1 else (1, 2):
        repeatable(kernel)[(plan.programs,)](
            *tensors,
            runs,
            given.stride // unit,
            given.rows * plan.slices,
            given.cols // unit,
            plan.slices,
            plan.steps,
            ARITHMETIC=arithmetic(x),
            STEP=plan.step,
            UNIT=plan.access.unit,
            EDGES=plan.access.edges,
            LONG=given.cols > LONGEST,
            LAUNCH=launch,
            SLICES=triton.next_power_of_2(plan.slices),
            LOOP=plan.programs < given.rows * plan.slices,
            num_warps=plan.warps,
        )


@planned
def _backward(y: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of ``x``, given the contiguous ``y`` and the gradient ``dy`` of ``y``."""
    dx = each_time(torch.empty_like, y)
    if y.numel() == 0:
        return dx
    flat = _flat(dy)
    _launch_backward(y, flat, dx)
    return dx


def _launch_backward(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    given = _rows_of(dy)
    block = triton.next_power_of_2(given.cols)
    alone = access(given, 1)
    if block > longest_held(given.itemsize, alone):
        _launch_long(_backward_long, long(given, 2), given, (y, dy, dx), results=1)
        return
    together = max(1, PAIR_TILE // block)
    if alone.edges and given.bytes > ALONE_BYTES:
        together = 1
    loads = alone if together == 1 else access(given, together)
    repeatable(_backward_rows)[(triton.cdiv(given.rows, together),)](
        y,
        dy,
        dx,
        given.stride // loads.stride_unit,
        given.rows,
        given.cols // loads.stride_unit,
        ARITHMETIC=arithmetic(y),
        ROWS=together,
        BLOCK=block,
        WHOLE=given.cols == block and given.rows % together == 0,
        PACKED=y.is_cuda and y.element_size() == 2,  # the interpreter has no assembly
        UNIT=loads.unit,
        EDGES=loads.edges,
        num_warps=backward_warps(block * together, given.itemsize),
    )


class _Differentiable(torch.autograd.Function):
    """``softmax`` for autograd, which saves y only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, asked: tuple[int | None, int | None, int | None]) -> Tensor:
        y = _forward(x, asked)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor], dy: Tensor) -> tuple[Tensor, None]:
        return _backward(saved[0], dy), None
