"""Cross entropy in Triton. Forward reads the logits once, with an online sum, and stores two numbers of each row.

The online sum keeps the largest x so far and the sum relative to it, as in ``kernels.softmax``. Each vector of a lane
has its own pair until the end of the row, so the loop contains no reduction across lanes. Largest x and sum are kept
apart for the backward: their logarithm, log sum exp, would lose digits where logits are large.

Backward reads the logits again and writes dx = (softmax(x) - 1 at the target) dloss, over all rows as one run of
numbers: so vectors of 16 bytes fit whatever the length of a row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..differentiable import apply, no_second_derivative
from ..row_vectors import LONGEST, Rows, access, edges, finite, first_vector
from ..triton_device import LANES, arithmetic, l2_bytes, multiprocessors, programs_for, require_floats, require_gpu
from ..triton_launch import each_time, planned, repeatable

IGNORED = tl.constexpr(-100)  # as in torch

STEP, STEP_WARPS = 2048, 4  # elements of a row that are read at once, and their warps
BLOCK, WARPS = 2048, 4  # elements and warps of a program of the backward, at most
SHORT = 4 * BLOCK  # rows of fewer elements have smaller blocks, so that more blocks are in one row


@triton.jit
def _cross_entropy(
    x_ptr, target_ptr, loss_ptr, stored_ptr, stride, rows, cols,
    SAVE: tl.constexpr, ARITHMETIC: tl.constexpr, STEP: tl.constexpr, UNIT: tl.constexpr, EDGES: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    # ``first_vector`` tells how ``stride`` and ``cols`` count. Rows are int64: int32 overflows at 2**31 elements.
    row = tl.program_id(0).to(tl.int64)
    if LONG:
        cols = cols.to(tl.int64)
    first, head, whole = first_vector(row, stride, cols, UNIT, EDGES)
    vector = tl.arange(0, STEP // UNIT)[:, None] * UNIT
    element = tl.arange(0, UNIT)[None, :]
    largest = tl.full((STEP // UNIT,), -float("inf"), ARITHMETIC)
    total = tl.zeros((STEP // UNIT,), ARITHMETIC)
    for start in range(0, whole, STEP):
        at = start + vector
        x = tl.load(x_ptr + first + (at + element), mask=at < whole, other=-float("inf")).to(ARITHMETIC)
        larger = tl.maximum(largest, tl.max(x, axis=1))
        base = finite(larger)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(x - base[:, None]), axis=1)
        largest = larger
    row_max = tl.max(largest, axis=0)
    if EDGES:
        edge, inside = edges(head, whole, cols, UNIT)
        x_edge = tl.load(x_ptr + first + edge, mask=inside, other=-float("inf")).to(ARITHMETIC)
        row_max = tl.maximum(row_max, tl.max(x_edge, axis=0))
    base = finite(row_max)
    row_sum = tl.sum(total * tl.exp(largest - base), axis=0)
    if EDGES:
        row_sum += tl.sum(tl.exp(x_edge - base), axis=0)
    target = tl.load(target_ptr + row)
    width = tl.zeros((), tl.int64) + (cols if EDGES else cols * UNIT)
    # A target that is no column gives NaN, and reads no memory of others.
    own = tl.load(x_ptr + (first - head + target), mask=(target >= 0) & (target < width), other=float("nan")).to(
        ARITHMETIC
    )
    loss = tl.where(target == IGNORED, 0.0, tl.log(row_sum) + (row_max - own))
    tl.store(loss_ptr + row, loss.to(loss_ptr.dtype.element_ty))
    if SAVE:
        tl.store(stored_ptr + row, row_max)
        tl.store(stored_ptr + rows + row, row_sum)


@triton.jit
def _row_facts(target_ptr, dloss_ptr, stored_ptr, row, rows, inside, ARITHMETIC: tl.constexpr):
    """Return the target of a row, its largest x, and the factors of exp(x - largest) and at the target."""
    target = tl.load(target_ptr + row, mask=inside, other=IGNORED)
    dloss = tl.load(dloss_ptr + row, mask=inside, other=0.0).to(ARITHMETIC)
    dloss = tl.where(target == IGNORED, 0.0, dloss)
    largest = tl.load(stored_ptr + row, mask=inside, other=0.0)
    return target, largest, dloss / tl.load(stored_ptr + rows + row, mask=inside, other=1.0), dloss


@triton.jit
def _backward_of(
    x_ptr, target_ptr, dloss_ptr, stored_ptr, dx_ptr, start, lane, left, rows, cols,
    ROWS: tl.constexpr, ARITHMETIC: tl.constexpr,
):  # fmt: skip
    # A block has elements of ROWS rows, 1 or 2, or 0: of any number. ``left``: elements from ``start`` on.
    row = start // cols
    first = start - row * cols
    inside = lane < tl.minimum(left, lane.shape[0]).to(tl.int32)
    if ROWS == 0:
        down = ((first + lane) // cols).to(tl.int32)
        target, largest, scale, dloss = _row_facts(
            target_ptr, dloss_ptr, stored_ptr, row + down, rows, inside, ARITHMETIC
        )
        at_target = first + lane - down * cols == target
    else:
        target, largest, scale, dloss = _row_facts(target_ptr, dloss_ptr, stored_ptr, row, rows, True, ARITHMETIC)
        at_target = lane == (target - first).to(tl.int32)
    if ROWS == 2:
        next_target, next_largest, next_scale, next_dloss = _row_facts(
            target_ptr, dloss_ptr, stored_ptr, row + 1, rows, row + 1 < rows, ARITHMETIC
        )
        edge = (cols - first).to(tl.int32)
        below = lane >= edge
        at_target = tl.where(below, lane - edge == next_target.to(tl.int32), at_target)
        largest, scale = tl.where(below, next_largest, largest), tl.where(below, next_scale, scale)
        dloss = tl.where(below, next_dloss, dloss)
    x = tl.load(x_ptr + start + lane, mask=inside, other=0.0).to(ARITHMETIC)
    dx = tl.exp(x - largest) * scale - tl.where(at_target, dloss, 0.0)
    tl.store(dx_ptr + start + lane, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _cross_entropy_backward(
    x_ptr, target_ptr, dloss_ptr, stored_ptr, dx_ptr, rows, cols, count,
    NARROW: tl.constexpr, ARITHMETIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    whole = count // LANES * LANES
    lane = tl.arange(0, BLOCK)
    left = whole - start
    if start >= whole:  # see ``programs_for``
        last, rest = tl.arange(0, LANES), count - whole
        _backward_of(x_ptr, target_ptr, dloss_ptr, stored_ptr, dx_ptr, whole, last, rest, rows, cols, 0, ARITHMETIC)
    elif NARROW:
        _backward_of(x_ptr, target_ptr, dloss_ptr, stored_ptr, dx_ptr, start, lane, left, rows, cols, 0, ARITHMETIC)
    elif start % cols + BLOCK <= cols:
        _backward_of(x_ptr, target_ptr, dloss_ptr, stored_ptr, dx_ptr, start, lane, left, rows, cols, 1, ARITHMETIC)
    else:
        _backward_of(x_ptr, target_ptr, dloss_ptr, stored_ptr, dx_ptr, start, lane, left, rows, cols, 2, ARITHMETIC)


def cross_entropy(x: Tensor, target: Tensor, *, BLOCK: int | None = None, num_warps: int | None = None) -> Tensor:
    """Compute the loss of each row; shapes and dtypes as in ``kernels.cross_entropy``.

    An ``x`` whose rows are not contiguous is copied first. The result can be differentiated once. A target that is
    neither a column nor -100 gives NaN.

    Args:
        x: logits.
        target: a column of each row.
        BLOCK: columns that a program of the forward reads at once, a power of 2; None: chosen by their number.
        num_warps: warps of such a program, a power of 2; None: chosen likewise.

    Raises:
        Unsupported: ``x`` is not on a GPU and Triton's interpreter is off, or ``x`` has another dtype.
        ValueError: ``x`` is no matrix, or ``target`` is not a vector of whole numbers for its rows, on its device.

    """
    asked = BLOCK, num_warps
    if x.requires_grad and torch.is_grad_enabled():
        return apply(_Differentiable, x, target, asked)
    loss: Tensor = _forward(x, target, asked, False)[0]
    return loss


@planned
def _forward(
    x: Tensor, target: Tensor, asked: tuple[int | None, int | None], save: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the loss, and, to ``save``, the largest x of each row and the sum relative to it, [2 * rows]."""
    require_gpu(x)
    require_floats(x)
    whole = target.dtype in (torch.int64, torch.int32)
    if x.dim() != 2 or target.shape != x.shape[:1] or target.device != x.device or not whole:
        shown = f"{[*x.shape]} on {x.device}, and {target.dtype} {[*target.shape]} on {target.device}"
        raise ValueError(f"give logits [rows, vocab], and a whole number for each row on their device; not {shown}")
    rows, cols = x.shape
    loss = each_time(torch.empty, rows, dtype=x.dtype, device=x.device)
    kind = torch.promote_types(x.dtype, torch.float32)
    stored = each_time(torch.empty, 2 * rows, dtype=kind, device=x.device) if save else None
    if rows == 0:
        return loss, stored
    x = x if x.stride(1) == 1 or cols == 1 else x.contiguous()
    given = Rows(rows, cols, x.stride(0), x.element_size(), multiprocessors(x), l2_bytes(x))
    loads = access(given, 1)
    step = max(2 * loads.unit, asked[0] or min(triton.next_power_of_2(cols), STEP))
    repeatable(_cross_entropy)[(rows,)](
        x, target.contiguous(), loss, loss if stored is None else stored, given.stride // loads.stride_unit, rows,
        cols // loads.stride_unit, SAVE=save, ARITHMETIC=arithmetic(x), STEP=step, UNIT=loads.unit, EDGES=loads.edges,
        LONG=cols > LONGEST, num_warps=asked[1] or (STEP_WARPS if step >= STEP else 1),
    )  # fmt: skip
    return loss, stored


@planned
def _backward(x: Tensor, target: Tensor, stored: Tensor, dloss: Tensor) -> Tensor:
    """Return the gradient of x, given that of each loss."""
    dx = each_time(torch.empty, *x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return dx
    rows, cols = x.shape
    block = BLOCK if cols >= SHORT else max(256, triton.next_power_of_2(cols + 1) // 2)
    block = min(BLOCK, block)
    repeatable(_cross_entropy_backward)[(programs_for(x.numel(), block),)](
        x.contiguous(), target.contiguous(), dloss.contiguous(), stored, dx, rows, cols, x.numel(),
        NARROW=cols < block, ARITHMETIC=arithmetic(x), BLOCK=block, num_warps=max(1, block * WARPS // BLOCK),
    )  # fmt: skip
    return dx


class _Differentiable(torch.autograd.Function):
    """``cross_entropy`` for autograd, which saves the logits, the targets and two numbers of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, asked: tuple[int | None, int | None]) -> Tensor:
        loss, stored = _forward(x, target, asked, True)
        ctx.save_for_backward(x, target, stored)
        return loss

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, saved: tuple[Tensor, Tensor, Tensor], dloss: Tensor) -> tuple[Tensor, None, None]:
        return _backward(*saved, dloss), None, None
