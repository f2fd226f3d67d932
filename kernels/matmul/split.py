"""float32 matrix product with float32 accuracy on tensor cores, from three products of float16.

Rows of a and columns of b are scaled and split in two (see ``kernels.fp16_split``): a_ik = s_i (hi + lo). Tensor cores
add hi lo + lo hi + hi hi over 64 terms, and float32 arithmetic adds these sums.

Error. Let A be the largest |a_ik| of row i, and B the largest |b_kj| of column j. The error of a term a_ik b_kj is at
most

    splitting    2^-23 of the term for each factor, if the factor is above 2^-13 of A or B
    lo lo        2^-22 of the term, since it is left out in sums of more than 32 terms
    tiny factor  2^-36 A |b_kj|, or 2^-36 B |a_ik|, in place of the first, since lo is subnormal

The error of the sum is what tensor cores truncate, below 2^-23 of a sum of 64 terms in each of 12 steps, and k / 64
roundings. A result below 2^-126, where float32 has fewer bits, has an additional error of up to 2^-149.

Float32 arithmetic has exact terms and rounds k times. From some dozens of terms on it is less accurate, at k = 4096 by
a factor of 7. It is more accurate if nearly all of a sum comes from factors below 2^-13 of the largest of their row or
column, such as in a row with one huge element that is multiplied by zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..fp16_split import Halves, split_columns, split_rows
from ..tensor_cores import (
    ALL_PRODUCTS,
    has_descriptors,
    has_roles,
    place,
    product,
    promote,
    tile,
    tiles_of,
)
from ..triton_device import multiprocessors, require_gpu, require_products
from ..triton_launch import each_time, planned, repeatable
from ..unsupported import Unsupported
from ._product import require_product

GROUP = 8  # rows of tiles that are visited together
REPAIR = 64  # rows and columns of a program that recomputes rows and columns which cannot be split


@dataclass(frozen=True)
class Plan:
    """A kernel and its tiles."""

    rows: int  # rows of a tile of y
    cols: int  # columns of it
    depth: int  # terms that a tensor core adds before float32 arithmetic adds the sums
    warps: int
    stages: int  # tiles in flight
    roles: bool = False  # specialized warps: kernels.hopper_split, whose tiles are fixed


def plan_for(m: int, n: int, *, processors: int, descriptors: bool, roles: bool) -> Plan:
    """Return the plan that was fastest on an H200 for y [m, n]; on older GPUs, one that fits.

    At 4096 cubed, 2026-11-21: 4.10 times as fast as float32 of cuBLAS in the same run with specialized warps, 3.34
    times without.
    """
    if triton.cdiv(m, 128) * triton.cdiv(n, 128) < processors:
        return Plan(rows=64, cols=64, depth=64, warps=4, stages=2)
    if roles:
        return Plan(rows=128, cols=128, depth=64, warps=4, stages=3, roles=True)
    if not descriptors:
        return Plan(rows=128, cols=128, depth=32, warps=8, stages=3)
    return Plan(rows=128, cols=128, depth=64, warps=8, stages=3)


@triton.jit
def _operand(
    halves, lo, row, k, width, COLUMNS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr
):  # fmt: skip
    """Load hi and lo, [ROWS, DEPTH] each, of a matrix that was split by rows or by columns."""
    if COLUMNS:
        hi = tile(halves, k, row, width, DEPTH, ROWS, DESCRIPTORS).T
        low = tile(halves, lo + k, row, width, DEPTH, ROWS, DESCRIPTORS).T
    else:
        hi = tile(halves, row, k, width, ROWS, DEPTH, DESCRIPTORS)
        low = tile(halves, lo + row, k, width, ROWS, DEPTH, DESCRIPTORS)
    return hi, low


@triton.jit
def _tiles(
    a, a_lo, a_width, a_scales, b, b_lo, b_width, b_scales, y, m, n, k, one,
    A_COLUMNS: tl.constexpr, B_COLUMNS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, ALL: tl.constexpr, STAGES: tl.constexpr, LOADS: tl.constexpr, STORES: tl.constexpr,
):  # fmt: skip
    m_tiles = tl.cdiv(m, ROWS)
    n_tiles = tl.cdiv(n, COLS)
    # Not flattened, so that the buffer of the store shares memory with the tiles in flight.
    for index in tl.range(tl.program_id(0), m_tiles * n_tiles, tl.num_programs(0), flatten=False):
        i, j = place(index, m_tiles, n_tiles, GROUP)
        row = i * ROWS
        col = j * COLS
        y_tile = tl.zeros((ROWS, COLS), tl.float32)
        for at in tl.range(0, k, DEPTH, num_stages=STAGES):
            a_hi, a_low = _operand(a, a_lo, row, at, a_width, A_COLUMNS, ROWS, DEPTH, LOADS)
            b_hi, b_low = _operand(b, b_lo, col, at, b_width, B_COLUMNS, COLS, DEPTH, LOADS)
            y_tile = promote(y_tile, product(a_hi, a_low, b_hi, b_low, ALL), one)
        rows = row + tl.arange(0, ROWS)
        cols = col + tl.arange(0, COLS)
        a_scale = tl.load(a_scales + rows, mask=rows < m, other=0.0)[:, None]
        b_scale = tl.load(b_scales + cols, mask=cols < n, other=0.0)[None, :]
        # The smaller factor first, or a huge row times a tiny column would overflow in between.
        y_tile = y_tile * tl.minimum(a_scale, b_scale) * tl.maximum(a_scale, b_scale)
        if STORES:
            half: tl.constexpr = COLS // 2
            left, right = tl.split(tl.permute(tl.reshape(y_tile, (ROWS, 2, half)), (0, 2, 1)))
            y.store([row, col], left)
            y.store([row, col + half], right)
        else:
            inside = (rows < m)[:, None] & (cols < n)[None, :]
            tl.store(y + rows.to(tl.int64)[:, None] * n + cols[None, :], y_tile, mask=inside)


@triton.jit
def _repair(
    a, a_row, a_col, a_scales, b, b_row, b_col, b_scales, y, m, n, k, SQUARE: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Recompute rows and columns with infinity or NaN from the inputs. They are rare."""
    across = tl.cdiv(n, SQUARE)
    row = (tl.program_id(0) // across).to(tl.int64) * SQUARE + tl.arange(0, SQUARE)
    col = (tl.program_id(0) % across).to(tl.int64) * SQUARE + tl.arange(0, SQUARE)
    a_lost = tl.load(a_scales + row, mask=row < m, other=0.0) == float("inf")
    b_lost = tl.load(b_scales + col, mask=col < n, other=0.0) == float("inf")
    if tl.max(a_lost.to(tl.int32), axis=0) + tl.max(b_lost.to(tl.int32), axis=0) > 0:
        y_tile = tl.zeros((SQUARE, SQUARE), tl.float32)
        for at in range(0, k, DEPTH):
            term = at + tl.arange(0, DEPTH).to(tl.int64)
            of_a = (row < m)[:, None] & (term < k)[None, :]
            of_b = (term < k)[:, None] & (col < n)[None, :]
            x = tl.load(a + row[:, None] * a_row + term[None, :] * a_col, mask=of_a, other=0.0)
            z = tl.load(b + term[:, None] * b_row + col[None, :] * b_col, mask=of_b, other=0.0)
            y_tile = tl.dot(x, z, y_tile, input_precision="ieee")
        lost = (a_lost[:, None] | b_lost[None, :]) & (row < m)[:, None] & (col < n)[None, :]
        tl.store(y + row[:, None] * n + col[None, :], y_tile, mask=lost)


@planned
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Compute a @ b of float32 matrices; shapes as in ``kernels.matmul``. Any strides are accepted.

    Infinities and NaN give the same results as float32 arithmetic.

    Raises:
        Unsupported: the dtype is not float32, or ``a`` is not on a GPU and Triton's interpreter is off.
        ValueError: the shapes, dtypes or devices do not match.

    """
    if a.dtype != torch.float32:
        raise Unsupported(f"the split into two float16 is for float32, not {a.dtype}; use impl=triton or impl=torch")
    require_gpu(a)
    require_products()
    require_product(a, b)
    (m, k), n = a.shape, b.shape[1]
    y = each_time(torch.empty, m, n, dtype=a.dtype, device=a.device)
    if y.numel() == 0 or k == 0:  # a descriptor cannot be empty
        return y.zero_()
    # Triton launches on the current device, which may not be that of a.
    with torch.cuda.device_of(a):
        plan = plan_for(m, n, processors=multiprocessors(a), descriptors=has_descriptors(a), roles=has_roles(a))
        x, z, columns = split(a, b, roles=plan.roles)
        launch(x, z, y, k, plan, columns=columns, descriptors=has_descriptors(a))
        squares = triton.cdiv(m, REPAIR) * triton.cdiv(n, REPAIR)
        repeatable(_repair)[(squares,)](
            a, *a.stride(), x.scales, b, *b.stride(), z.scales, y, m, n, k, SQUARE=REPAIR, DEPTH=32, num_warps=4
        )
    return y


def split(a: Tensor, b: Tensor, *, roles: bool) -> tuple[Halves, Halves, tuple[bool, bool]]:
    """Split both operands, each along memory if possible.

    With ``roles``, a is always split by rows.

    Returns:
        The halves of a and b, and for each whether it was split by columns.

    """
    a_columns, b_columns = a.stride(0) < a.stride(1) and not roles, b.stride(1) <= b.stride(0)
    if not a_columns and not b_columns:
        return *split_rows(a, b.mT), (False, False)  # one launch for both
    x = split_columns(a.mT) if a_columns else split_rows(a, a[:0])[0]
    z = split_columns(b) if b_columns else split_rows(b.mT, b.mT[:0])[0]
    return x, z, (a_columns, b_columns)


def launch(
    a: Halves, b: Halves, y: Tensor, k: int, plan: Plan, *, columns: tuple[bool, bool], descriptors: bool
) -> object:
    """Write the product of ``a`` and ``b``, with ``k`` terms, into ``y`` [m, n] by ``plan``.

    ``columns`` is the last result of ``split``. ``descriptors``: the tensor memory accelerator copies tiles. Returns
    the compiled kernel.
    """
    every = k <= ALL_PRODUCTS
    if plan.roles:
        from ..hopper_split import ring  # imported here, since older versions of Triton lack Gluon for Hopper

        return ring(
            a, b, y, distances=False, b_columns=columns[1], all_products=every, depth=plan.depth, slots=plan.stages,
            group=GROUP,
        )  # fmt: skip
    m, n = y.shape
    a_box, b_box = (
        (plan.depth, rows) if by_column else (rows, plan.depth)
        for rows, by_column in zip((plan.rows, plan.cols), columns, strict=True)
    )
    # The row stride of a descriptor is a multiple of 16 bytes.
    stores = descriptors and n % 4 == 0
    tiles = triton.cdiv(m, plan.rows) * triton.cdiv(n, plan.cols)
    return repeatable(_tiles)[(min(tiles, multiprocessors(y)) if descriptors else tiles,)](
        tiles_of(a.data, *a_box, descriptors=descriptors), a.lo, a.data.shape[1], a.scales,
        tiles_of(b.data, *b_box, descriptors=descriptors), b.lo, b.data.shape[1], b.scales,
        tiles_of(y, plan.rows, plan.cols // 2, descriptors=stores), m, n, k, 1.0,
        A_COLUMNS=columns[0], B_COLUMNS=columns[1], ROWS=plan.rows, COLS=plan.cols, DEPTH=plan.depth, GROUP=GROUP,
        ALL=every, STAGES=plan.stages, LOADS=descriptors, STORES=stores,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
