"""Pairwise distances on tensor cores: y^2 = |a|^2 + |b|^2 - 2 a.b, where a.b is a sum of float16 products.

This expansion cancels where points are close compared with their distance from the origin. So float32 points are first
moved by a common centre c, and the products have float32 accuracy (see ``kernels.fp16_split``). The error of y^2 is
then a few units of |a - c|^2 + |b - c|^2. A float16 or bfloat16 number fits into one float16; these points are not
moved. On Hopper GPUs the warps of large float32 cases are specialized (``kernels.hopper_split``, ``_hopper.py``). All
other kernels are in this file.

float64, and points of few coordinates where that is faster, are computed from differences, without tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..fp16_split import Halves, split_points
from ..tensor_cores import (
    ALL_PRODUCTS,
    has_descriptors,
    has_roles,
    place,
    product,
    promote,
    root,
    tile,
    tiles_of,
)
from ..triton_device import multiprocessors, require_floats, require_gpu, require_products
from ..triton_launch import each_time, planned, repeatable
from ._points import require_points

GROUP = 8  # rows of tiles that are visited together


@dataclass(frozen=True)
class Plan:
    """A kernel and its tiles."""

    rows: int  # rows of a tile of y
    cols: int  # columns of it
    depth: int  # coordinates that a tensor core adds before float32 arithmetic adds the sums
    warps: int
    stages: int  # tiles in flight
    programs: int  # programs of a multiprocessor; 0: a program for each tile
    store: int  # columns of y that a descriptor stores at a time: all, or half to halve the buffer; 0: store by pointer
    resident: bool = False  # a program keeps a tile of a, and reads tiles of b; only with ``roles``
    roles: bool = False  # specialized warps: kernels.hopper_split, whose tiles are fixed


# Tiles of 64 x 64 keep multiprocessors busy where larger ones would leave a wave nearly empty. They take a third more
# time for an element, and the more the longer a sum is.
SMALL_COST, SMALL_DEPTH = 1.35, 256
# The least number of tiles of b for which a program keeps a tile of a: tensor cores wait until that one has arrived.
PASSING = 8
# Differences have one kernel; tensor cores need the points in halves first. Times in us of a million elements of y:
FEW = 16  # coordinates, at most
DIFFERENCES = (8, 128, 2)  # rows, columns and warps of a program
MIN_US, COORDINATE_US = 1.5, 0.3  # of differences: at least, and for each coordinate
ALIGNED_US, UNALIGNED_US = 1.5, 2.1  # of tensor cores, where rows of y are aligned and where they are not
SPLIT_US = 5.0  # to split the points, whatever their number
RING_DEPTH = 256  # with more coordinates than this, tiles of 128 x 128 are faster than tiles of 64 x 128


def plan_for(n: int, m: int, d: int, *, processors: int, descriptors: bool, roles: bool) -> Plan:
    """Return the plan that was fastest on an H100 or H200 for points [n, d] and [m, d]; on older GPUs, one that fits.

    Times in us of float32 points with specialized warps on an H200, and of torch.cdist in the same run, on 2026-11-21:

        n = m, d      2048, 2048   8192, 2048   16384, 64   8192, 128
        this          93.0         1202         427         140
        torch.cdist   422          5875         2200        790
        ratio         4.54         4.89         5.15        5.64
    """
    row_tiles, col_tiles = triton.cdiv(n, 128), triton.cdiv(m, 128)
    waves = triton.cdiv(row_tiles * col_tiles, processors)
    small = SMALL_COST * triton.cdiv(n, 64) * triton.cdiv(m, 64) / 4
    if row_tiles * col_tiles < processors or (d <= SMALL_DEPTH and small < waves * processors):
        # A lone program waits for each tile that is not on its way.
        stages = 2 if not descriptors or d <= 32 else 3 if d <= 128 else 4
        return Plan(rows=64, cols=64, depth=32 if d <= 128 else 64, warps=4, stages=stages, programs=0, store=64)
    aligned = m % 4 == 0  # rows of float32: else warps with roles take several times as long to store them
    if roles and aligned and d > RING_DEPTH:
        return Plan(rows=128, cols=128, depth=64, warps=4, stages=3, programs=1, store=0, roles=True)
    if roles and aligned and d <= 128 and col_tiles >= PASSING:
        return Plan(
            rows=128, cols=128, depth=32 if d <= 32 else 64, warps=4, stages=1 if d > 64 else 3,
            programs=1, store=128, resident=True, roles=True,
        )  # fmt: skip
    if not descriptors:
        return Plan(rows=128, cols=128, depth=32, warps=8, stages=4, programs=0, store=0)
    if aligned and d > RING_DEPTH:
        return Plan(rows=128, cols=128, depth=64, warps=8, stages=3, programs=1, store=64)
    if aligned and d > 32:
        return Plan(rows=64, cols=128, depth=64, warps=4, stages=2, programs=0, store=64)
    return Plan(rows=64, cols=128, depth=32, warps=4, stages=3, programs=0, store=64)


@triton.jit
def _finish(
    y, dots, a_norm, a_scale, b_norms, b_scales, row, col, n, m,
    ROWS: tl.constexpr, COLS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    cols = col + tl.arange(0, COLS)
    b_scale = tl.load(b_scales + cols, mask=cols < m, other=0.0)
    b_norm = tl.load(b_norms + cols, mask=cols < m, other=0.0)
    # In this order, since the intermediate sum that is rounded is then smaller than a sum of the norms.
    square = tl.fma(dots * b_scale[None, :], (-2 * a_scale)[:, None], a_norm[:, None]) + b_norm[None, :]
    y_tile = root(square)
    if STORE == COLS:
        y.store([row, col], y_tile.to(y.dtype))
    elif STORE > 0:
        left, right = tl.split(tl.permute(tl.reshape(y_tile, (ROWS, 2, STORE)), (0, 2, 1)))
        y.store([row, col], left.to(y.dtype))
        y.store([row, col + STORE], right.to(y.dtype))
    else:
        rows = row + tl.arange(0, ROWS)
        inside = (rows < n)[:, None] & (cols < m)[None, :]
        tl.store(y + rows.to(tl.int64)[:, None] * m + cols[None, :], y_tile.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _halves(
    x, lo, row, k, width, PARTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr
):  # fmt: skip
    """Load hi and lo, [ROWS, DEPTH] each; hi twice if there is no lo."""
    hi = tile(x, row, k, width, ROWS, DEPTH, DESCRIPTORS)
    low = hi
    if PARTS == 2:
        low = tile(x, lo + row, k, width, ROWS, DEPTH, DESCRIPTORS)
    return hi, low


@triton.jit
def _dots(a_hi, a_low, b_hi, b_low, PARTS: tl.constexpr, ALL: tl.constexpr):
    if PARTS == 2:
        return product(a_hi, a_low, b_hi, b_low, ALL)
    else:  # noqa: RET505 - without else both branches are compiled
        return tl.dot(a_hi, b_hi.T)


@triton.jit
def _tiles(
    a, a_lo, a_norms, a_scales, b, b_lo, b_norms, b_scales, y, n, m, width, one,
    PARTS: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, STAGES: tl.constexpr, LOADS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Compute distances for any number of coordinates. A program computes tile after tile of y."""
    n_tiles = tl.cdiv(n, ROWS)
    m_tiles = tl.cdiv(m, COLS)
    # Not flattened, so that the buffer of the store shares memory with the tiles in flight.
    for index in tl.range(tl.program_id(0), n_tiles * m_tiles, tl.num_programs(0), flatten=False):
        i, j = place(index, n_tiles, m_tiles, GROUP)
        row = i * ROWS
        col = j * COLS
        dots = tl.zeros((ROWS, COLS), tl.float32)
        for k in tl.range(0, width, DEPTH, num_stages=STAGES):
            a_hi, a_low = _halves(a, a_lo, row, k, width, PARTS, ROWS, DEPTH, LOADS)
            b_hi, b_low = _halves(b, b_lo, col, k, width, PARTS, COLS, DEPTH, LOADS)
            dots = promote(dots, _dots(a_hi, a_low, b_hi, b_low, PARTS, ALL), one)
        rows = row + tl.arange(0, ROWS)
        a_norm = tl.load(a_norms + rows, mask=rows < n, other=0.0)
        a_scale = tl.load(a_scales + rows, mask=rows < n, other=0.0)
        _finish(y, dots, a_norm, a_scale, b_norms, b_scales, row, col, n, m, ROWS, COLS, STORE)


@triton.jit
def _differences(
    a, a_row, a_col, b, b_row, b_col, y, n, m, steps,
    ARITHMETIC: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Compute distances from differences, in ``steps`` of TOGETHER coordinates whose loads are on their way at once."""
    largest: tl.constexpr = 3.4028234663852886e38
    across = (m - 1) // COLS + 1  # tl.cdiv would overflow just below 2**31 points
    rows = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % across).to(tl.int64) * COLS + tl.arange(0, COLS)
    square = tl.zeros((ROWS, COLS), ARITHMETIC)
    for _ in range(steps):
        for _ in tl.static_range(TOGETHER):
            x = tl.load(a + rows[:, None] * a_row, mask=rows[:, None] < n, other=0.0).to(ARITHMETIC)
            z = tl.load(b + cols[None, :] * b_row, mask=cols[None, :] < m, other=0.0).to(ARITHMETIC)
            if ARITHMETIC == tl.float32:  # noqa: SIM300  # not a constant
                # Finite, since a point at infinity is infinitely far from another one there. NaN stays NaN.
                z = tl.where(z > largest, largest, tl.where(z < -largest, -largest, z))
            difference = x - z
            square = tl.fma(difference, difference, square)
            a += a_col
            b += b_col
    inside = (rows < n)[:, None] & (cols < m)[None, :]
    distances = root(square) if ARITHMETIC == tl.float32 else tl.sqrt(square)  # noqa: SIM300
    tl.store(y + rows[:, None] * m + cols[None, :], distances.to(y.dtype.element_ty), mask=inside)


@planned
def cdist(a: Tensor, b: Tensor, *, p: int) -> Tensor:
    """Compute the distances between the rows of ``a`` and ``b``; shapes and dtypes as in ``kernels.cdist``.

    Any strides are accepted. A row whose squares overflow float32, such as one of 1e20, is infinitely far from all
    others.

    Raises:
        Unsupported: ``a`` is not on a GPU and Triton's interpreter is off, or ``a`` has another dtype.
        ValueError: ``a`` and ``b`` differ in dtype, device or number of coordinates, or ``p`` is not 2.

    """
    require_gpu(a)
    require_floats(a)
    require_products()
    require_points(a, b, p)
    y = each_time(torch.empty, a.shape[0], b.shape[0], dtype=a.dtype, device=a.device)
    if y.numel() == 0 or a.shape[1] == 0:
        return y.zero_()
    # Triton launches on the current device, which may not be that of a.
    with torch.cuda.device_of(a):
        if a.dtype == torch.float64 or differences_win(y.shape[0], y.shape[1], a.shape[1], y.element_size()):
            _launch_differences(a, b, y)
            return y
        narrow = a.dtype != torch.float32
        plan = plan_for(
            y.shape[0], y.shape[1], a.shape[1], processors=multiprocessors(a), descriptors=has_descriptors(a),
            roles=has_roles(a) and not narrow,
        )  # fmt: skip
        halves = split_points(a, b, depth=plan.depth, parts=1 if narrow else 2)
        launch(*halves, y, a.shape[1], plan, descriptors=has_descriptors(a))
    return y


def differences_win(n: int, m: int, d: int, itemsize: int) -> bool:
    """Return whether differences are faster than tensor cores for points [n, d] and [m, d], by an estimate."""
    by_tensor_cores = ALIGNED_US if m * itemsize % 16 == 0 else UNALIGNED_US
    return d <= FEW and n * m * (max(MIN_US, d * COORDINATE_US) - by_tensor_cores) < SPLIT_US * 1e6


def _launch_differences(a: Tensor, b: Tensor, y: Tensor) -> object:
    (n, m), d = y.shape, a.shape[1]
    double = a.dtype == torch.float64
    rows, cols, warps = (32, 32, 4) if double else DIFFERENCES
    together = 1 if double else d
    return repeatable(_differences)[(triton.cdiv(n, rows) * triton.cdiv(m, cols),)](
        a, *a.stride(), b, *b.stride(), y, n, m, d // together,
        ARITHMETIC=tl.float64 if double else tl.float32, TOGETHER=together, ROWS=rows, COLS=cols, num_warps=warps,
    )  # fmt: skip


def launch(a: Halves, b: Halves, y: Tensor, d: int, plan: Plan, *, descriptors: bool) -> object:
    """Write the distances between points of ``d`` coordinates into ``y`` [n, m], by ``plan``.

    ``descriptors``: the tensor memory accelerator copies tiles. Returns the compiled kernel.
    """
    every = d <= ALL_PRODUCTS
    if plan.roles:
        return _launch_roles(a, b, y, plan, every=every)
    n, m = y.shape
    # The row stride of a descriptor is a multiple of 16 bytes.
    store = plan.store if descriptors and m * y.element_size() % 16 == 0 else 0
    points = (
        tiles_of(a.data, plan.rows, plan.depth, descriptors=descriptors), a.lo, a.norms, a.scales,
        tiles_of(b.data, plan.cols, plan.depth, descriptors=descriptors), b.lo, b.norms, b.scales,
        tiles_of(y, plan.rows, store, descriptors=store > 0), n, m,
    )  # fmt: skip
    constants = {
        "PARTS": a.data.shape[0] // a.lo,
        "ALL": every,
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "DEPTH": plan.depth,
        "STAGES": plan.stages,
        "LOADS": descriptors,
        "STORE": store,
        "num_warps": plan.warps,
        "num_stages": plan.stages,
    }
    tiles = triton.cdiv(n, plan.rows) * triton.cdiv(m, plan.cols)
    programs = min(plan.programs * multiprocessors(y) or tiles, tiles)
    return repeatable(_tiles)[(programs,)](*points, a.data.shape[1], 1.0, GROUP=GROUP, **constants)


def _launch_roles(a: Halves, b: Halves, y: Tensor, plan: Plan, *, every: bool) -> object:
    # Imported here, since older versions of Triton lack Gluon for Hopper.
    if plan.resident:
        from ._hopper import stay

        return stay(a, b, y, all_products=every, depth=plan.depth, slots=plan.stages)
    from ..hopper_split import ring

    return ring(
        a, b, y, distances=True, b_columns=False, all_products=every, depth=plan.depth, slots=plan.stages, group=GROUP
    )
