"""The nearest centre in one Triton kernel on tensor cores: no distance leaves a program.

A program keeps the least |b|^2 - 2 a.b of each of its points, and its index, while it goes through the centres. |a|^2
is the same for all of them. The product has float32 accuracy, from float16 halves (``kernels.fp16_split``): TF32 would
take another centre for the nearest where two are nearly as far. The halves are made by a kernel before.

With few points, several programs share them, each with a part of the centres. The last one to arrive compares the
parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cdist._points import require_points
from ..cdist.triton import _dots, _halves
from ..fp16_split import split_points
from ..matmul._triton_kernels import _is_last
from ..stream_memory import counters
from ..tensor_cores import ALL_PRODUCTS, has_descriptors, promote, tiles_of
from ..triton_device import multiprocessors, require_gpu, require_products
from ..triton_launch import each_time, planned, repeatable
from ..unsupported import Unsupported

TYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS = 64  # points of a program


@triton.jit
def _nearest(
    a, a_lo, a_norms, a_scales, b, b_lo, b_norms, b_scales, y, values, places, counted, n, m, width, one,
    PARTS: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    SEGMENTS: tl.constexpr, STAGES: tl.constexpr, LOADS: tl.constexpr, STAY: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0) // SEGMENTS
    segment = tl.program_id(0) % SEGMENTS
    row = group * ROWS
    rows = row + tl.arange(0, ROWS)
    of_a = tl.load(a_norms + rows, mask=rows < n, other=0.0)
    a_scale = -2 * tl.load(a_scales + rows, mask=(rows < n) & (of_a < float("inf")), other=0.0)
    best = tl.full((ROWS,), float("inf"), tl.float32)
    place = tl.zeros((ROWS,), tl.int32)
    tiles = tl.cdiv(m, COLS)
    first, last = segment * tiles // SEGMENTS, (segment + 1) * tiles // SEGMENTS
    deep = 1 if STAY else width // DEPTH  # steps of a tile
    if STAY:
        a_hi, a_low = _halves(a, a_lo, row, 0, width, PARTS, ROWS, DEPTH, LOADS)
    dots = tl.zeros((ROWS, COLS), tl.float32)
    for step in tl.range(first * deep, last * deep, num_stages=STAGES):
        col = step // deep * COLS
        k = step % deep * DEPTH
        if not STAY:
            a_hi, a_low = _halves(a, a_lo, row, k, width, PARTS, ROWS, DEPTH, LOADS)
        b_hi, b_low = _halves(b, b_lo, col, k, width, PARTS, COLS, DEPTH, LOADS)
        part = _dots(a_hi, a_low, b_hi, b_low, PARTS, ALL)
        dots = part if STAY else promote(dots, part, one)
        if STAY or k + DEPTH >= width:
            cols = col + tl.arange(0, COLS)
            norm = tl.load(b_norms + cols, mask=cols < m, other=float("inf"))
            scale = tl.load(b_scales + cols, mask=(cols < m) & (norm < float("inf")), other=0.0)
            # Nothing is nearer than NaN. A centre whose squares overflow is infinitely far.
            norm = tl.where(norm == norm, norm, -float("inf"))
            far = tl.fma(dots * scale[None, :], a_scale[:, None], norm[None, :])
            least = tl.min(far, axis=1)
            nearest = tl.min(tl.where(far == least[:, None], cols[None, :], 0x7FFFFFFF), axis=1)
            place = tl.where(least < best, nearest, place)
            best = tl.minimum(least, best)
            if not STAY:
                dots = tl.zeros((ROWS, COLS), tl.float32)
    here = True
    if SEGMENTS > 1:
        tl.store(values + segment * n + rows, best, mask=rows < n)
        tl.store(places + segment * n + rows, place, mask=rows < n)
        here = _is_last(counted + group, SEGMENTS)
        if here:
            best = tl.full((ROWS,), float("inf"), tl.float32)
            place = tl.zeros((ROWS,), tl.int32)
            for other in range(SEGMENTS):
                value = tl.load(values + other * n + rows, mask=rows < n, other=0.0, cache_modifier=".cg")
                there = tl.load(places + other * n + rows, mask=rows < n, other=0, cache_modifier=".cg")
                place = tl.where(value < best, there, place)
                best = tl.minimum(value, best)
    if here:
        # All distances of a point with NaN are NaN; those of an infinite one are infinite, but for centres with NaN.
        place = tl.where((of_a < float("inf")) | ((of_a == of_a) & (best == -float("inf"))), place, 0)
        tl.store(y + rows, place.to(tl.int64), mask=rows < n)


def plan_for(n: int, m: int, d: int, *, narrow: bool, processors: int, descriptors: bool) -> tuple[int, int, int]:
    """Return the centres and coordinates of a step, and the programs that share points [n, d] among centres [m, d].

    ``narrow``: a number fits into one float16. Without ``descriptors`` the tiles fit into any GPU.
    """
    cols = 64 if not descriptors else 256 if narrow and d <= 64 else 128
    segments = max(1, min(2 * processors // triton.cdiv(n, ROWS), triton.cdiv(m, cols) // 2))
    return cols, 32 if d <= 32 else 64, triton.next_power_of_2(segments + 1) // 2  # few kernels are compiled


@planned
def nearest(a: Tensor, b: Tensor, *, SEGMENTS: int | None = None) -> Tensor:
    """Find the nearest rows of ``b``; shapes and dtypes as in ``kernels.nearest``, with any strides.

    Rows are shorter than 1e19: the squares of longer ones overflow float32, and they count as infinitely far.

    Raises:
        Unsupported: ``a`` is not on a GPU and Triton's interpreter is off, or ``a`` has another dtype.
        ValueError: ``a`` and ``b`` differ in dtype, device or number of coordinates, or ``b`` has no rows.

    """
    require_gpu(a)
    require_products()
    if a.dtype not in TYPES:
        raise Unsupported(f"this kernel takes {', '.join(map(str, TYPES))}; convert a and b from {a.dtype}")
    require_points(a, b, 2)
    if not b.shape[0]:
        raise ValueError("there is no centre: give b at least one row")
    (n, d), m = a.shape, b.shape[0]
    y = each_time(torch.empty, n, dtype=torch.int64, device=a.device)
    if n == 0 or d == 0:
        return y.zero_()
    descriptors = has_descriptors(a)
    narrow = a.dtype != torch.float32
    processors = multiprocessors(a)
    cols, depth, segments = plan_for(n, m, d, narrow=narrow, processors=processors, descriptors=descriptors)
    segments = SEGMENTS or segments
    of_a, of_b = split_points(a, b, depth=depth, parts=1 if narrow else 2)
    groups = triton.cdiv(n, ROWS)
    values = places = counted = y
    if segments > 1:
        values = each_time(torch.empty, segments * n, dtype=torch.float32, device=a.device)
        places = each_time(torch.empty, segments * n, dtype=torch.int32, device=a.device)
        counted = counters(y, groups)
    repeatable(_nearest)[(groups * segments,)](
        tiles_of(of_a.data, ROWS, depth, descriptors=descriptors), of_a.lo, of_a.norms, of_a.scales,
        tiles_of(of_b.data, cols, depth, descriptors=descriptors), of_b.lo, of_b.norms, of_b.scales,
        y, values, places, counted, n, m, of_a.data.shape[1], 1.0,
        PARTS=of_a.data.shape[0] // of_a.lo, ALL=d <= ALL_PRODUCTS, ROWS=ROWS, COLS=cols, DEPTH=depth,
        SEGMENTS=segments, STAGES=2, LOADS=descriptors, STAY=of_a.data.shape[1] == depth,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return y
