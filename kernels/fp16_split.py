"""Split float32 matrices into pairs of float16, for products with float32 accuracy on tensor cores.

Each row (or column) of a matrix is scaled by a power of two, so that its largest element lies in [2^11, 2^12). Then it
is split: hi = float16(x), lo = float16(x - hi). Both keep 11 bits. So hi + lo is within 2^-23 |x| of x for every x
above 2^-13 of the largest, and within 2^-36 of the largest below that, where lo is subnormal. A product of two such
matrices is the sum of three float16 products, hi lo + lo hi + hi hi. The fourth, lo lo, is below 2^-22 of the product
and is left out. This is twice as fast as tf32.

Tensor cores truncate sums where float32 arithmetic rounds, so the error of a long sum grows with its length, in one
direction. Therefore tensor cores add only a few dozen terms, and ordinary float32 instructions add these partial sums.

Source: Ootomo & Yokota 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
theoretical peak performance", Int. J. High Perform. Comput. Appl. 36(4), arXiv:2203.03341. They also scale before they
split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import each_time, repeatable

# Matrices are padded with zeros to whole tiles, so that kernels read them without masks.
ROWS = 128  # the number of rows is padded to a multiple of this
DEPTH = 64  # the length of the axis of the sum is padded to a multiple of this

WHOLE = 8192  # elements of a row that a program holds in registers; longer rows are read twice, in parts
TOGETHER = 1024  # the least number of elements of a program: it takes several short rows
LONGEST = tl.constexpr(2**20)  # the norm of a row up to this length is rounded only once
SAMPLES = 32  # rows of each set from which the centre is computed
IN_PLACE = 64  # up to this many columns each program computes the centre itself, which saves a launch
SQUARE = 64  # rows and columns of a program that splits columns
CENTRES = 32  # columns of a program that computes the centre


@dataclass(frozen=True)
class Halves:
    """A matrix as two float16 matrices, hi above lo, each padded to whole tiles.

    Split by rows, row i of the matrix is (data[i] + data[lo + i]) * scales[i]. Split by columns, column j is
    (data[:lo, j] + data[lo:, j]) * scales[j].
    """

    data: Tensor  # [2 lo, width] float16; [lo, width] if there is only hi
    lo: int  # the first row of lo
    scales: Tensor  # [rows] or [columns] float32, powers of two
    norms: Tensor  # [rows] float32, sums of squares of the rows; only split_points computes them


@triton.jit
def _bits(x):
    """Return the bits of |x| as an integer. They are ordered as the numbers are, then infinity, then NaN."""
    return tl.abs(x).to(tl.int32, bitcast=True)


@triton.jit
def _exponent(peak):
    """Return e = floor(log2(peak)) from the bits of ``peak``, clamped so that 2^(11 - e) and 2^(e - 11) are normal."""
    return tl.minimum(tl.maximum((peak >> 23) - 127, -115), 127)


@triton.jit
def _power_of_2(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _scale(peak):
    """Return the factor of hi + lo; infinity if the peak is infinite or NaN, where a split is impossible."""
    return tl.where(peak < 0x7F800000, _power_of_2(_exponent(peak) - 11), float("inf"))


@triton.jit
def _store(x, peak, halves, lo, index, mask, PARTS: tl.constexpr):
    """Store ``x`` in halves, and return the scaled value that they represent, below 2^12."""
    # Rows that cannot be scaled become zeros; their scale or norm then determines the results.
    scaled = tl.where(peak < 0x7F800000, x * _power_of_2(11 - _exponent(peak)), 0.0)
    hi = scaled.to(tl.float16)
    stored = hi.to(tl.float32)
    tl.store(halves + index, hi, mask=mask)
    if PARTS == 2:
        low = (scaled - stored).to(tl.float16)
        tl.store(halves + lo + index, low, mask=mask)
        stored += low.to(tl.float32)
    return stored


@triton.jit
def _coarse(scaled, WIDTH: tl.constexpr):
    """Return squares of scaled numbers, rounded to multiples of 2 WIDTH, so that a sum of up to WIDTH of them is exact.

    The remainders are small and their sum has almost no error, so the two sums together are rounded once.
    """
    most: tl.constexpr = 16777216.0 * WIDTH
    return tl.fma(scaled, scaled, most) - most


@triton.jit
def _load(x, x_row, x_col, row, col, rows, cols):
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    return tl.load(x + row.to(tl.int64)[:, None] * x_row + col.to(tl.int64)[None, :] * x_col, mask=inside, other=0.0)


@triton.jit
def _samples(x, x_row, x_col, rows, col, cols, SAMPLES: tl.constexpr):
    row = tl.arange(0, SAMPLES).to(tl.int64) * rows // SAMPLES
    return _load(x, x_row, x_col, row, col, rows, cols).to(tl.float32)


@triton.jit
def _centre_of(a, a_row, a_col, n, b, b_row, b_col, m, col, cols, SAMPLES: tl.constexpr):
    of_a = _samples(a, a_row, a_col, n, col, cols, SAMPLES)
    of_b = _samples(b, b_row, b_col, m, col, cols, SAMPLES)
    low = tl.minimum(tl.min(of_a, axis=0), tl.min(of_b, axis=0))
    high = tl.maximum(tl.max(of_a, axis=0), tl.max(of_b, axis=0))
    middle = 0.5 * low + 0.5 * high
    alike = ((low > 0) & (high <= 2 * low)) | ((high < 0) & (low >= 2 * high))
    return tl.where(alike & (tl.abs(middle) < float("inf")), middle, 0.0)


@triton.jit
def _find_centre(
    a, a_row, a_col, n, b, b_row, b_col, m, cols, centre, SAMPLES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(centre + col, _centre_of(a, a_row, a_col, n, b, b_row, b_col, m, col, cols, SAMPLES), mask=col < cols)


@triton.jit
def _moved(x, x_row, x_col, row, col, rows, cols, middle):
    x = _load(x, x_row, x_col, row, col, rows, cols).to(tl.float32) - middle[None, :]
    return tl.where((row < rows)[:, None] & (col < cols)[None, :], x, 0.0)


@triton.jit
def _split_rows(
    x, x_row, x_col, block, rows, cols, halves, lo, width, norms, scales, centre, middle,
    CENTRE: tl.constexpr, NORMS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LOOP: tl.constexpr,
):  # fmt: skip
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    below = tl.cast(lo, tl.int64) * width
    if LOOP:
        most = tl.zeros((ROWS, BLOCK), tl.int32)
        squares = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, width, BLOCK):
            if CENTRE:
                middle = tl.load(centre + start + col, mask=start + col < cols, other=0.0)
            value = _moved(x, x_row, x_col, row, start + col, rows, cols, middle)
            most = tl.maximum(most, _bits(value))
            squares += value * value
    else:
        value = _moved(x, x_row, x_col, row, col, rows, cols, middle)
        most = _bits(value)
        squares = value * value
    peak = tl.max(most, axis=1)
    norm = tl.sum(squares, axis=1)
    if NORMS:
        # A row whose squares overflow is infinitely far from all others, so its products are set to 0.
        peak = tl.maximum(peak, tl.where(norm < float("inf"), 0, 0x7F800000))
        tl.store(scales + row, tl.where(norm < float("inf"), _scale(peak), 0.0), mask=row < rows)
    else:
        tl.store(scales + row, _scale(peak), mask=row < rows)
    if LOOP:
        coarse = tl.zeros((ROWS, BLOCK), tl.float32)
        fine = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, width, BLOCK):
            if CENTRE:
                middle = tl.load(centre + start + col, mask=start + col < cols, other=0.0)
            value = _moved(x, x_row, x_col, row, start + col, rows, cols, middle)
            mask = (row < rows)[:, None] & (start + col < width)[None, :]
            index = row[:, None] * width + (start + col)[None, :]
            value = _store(value, peak[:, None], halves, below, index, mask, PARTS)
            large = _coarse(value, LONGEST)
            coarse += large
            fine += tl.fma(value, value, -large)
    else:
        mask = (row < rows)[:, None] & (col < width)[None, :]
        value = _store(value, peak[:, None], halves, below, row[:, None] * width + col[None, :], mask, PARTS)
        coarse = _coarse(value, BLOCK)
        fine = tl.fma(value, value, -coarse)
    if NORMS:
        # The norm is that of the stored row. The rounding of the split then moves a point a little, and does not
        # disturb the cancellation between two close points.
        unit = _power_of_2(_exponent(peak) - 11)
        exact = (tl.sum(coarse, axis=1) + tl.sum(fine, axis=1)) * unit * unit
        tl.store(norms + row, tl.where(norm < float("inf"), exact, norm), mask=row < rows)


@triton.jit
def _split_both(
    a, a_row, a_col, n, a_halves, a_lo, a_norms, a_scales, b, b_row, b_col, m, b_halves, b_lo, b_norms, b_scales,
    cols, width, centre,
    CENTRE: tl.constexpr, SAMPLES: tl.constexpr, NORMS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    middle = tl.zeros((BLOCK,), tl.float32)
    if SAMPLES > 0:
        middle = _centre_of(a, a_row, a_col, n, b, b_row, b_col, m, col, cols, SAMPLES)
    elif CENTRE and not LOOP:
        middle = tl.load(centre + col, mask=col < cols, other=0.0)
    block = tl.program_id(0)
    of_a = tl.cdiv(n, ROWS)
    if block < of_a:
        _split_rows(
            a, a_row, a_col, block, n, cols, a_halves, a_lo, width, a_norms, a_scales, centre, middle,
            CENTRE, NORMS, PARTS, ROWS, BLOCK, LOOP,
        )  # fmt: skip
    else:
        _split_rows(
            b, b_row, b_col, block - of_a, m, cols, b_halves, b_lo, width, b_norms, b_scales, centre, middle,
            CENTRE, NORMS, PARTS, ROWS, BLOCK, LOOP,
        )  # fmt: skip


def split_points(a: Tensor, b: Tensor, *, depth: int, parts: int) -> tuple[Halves, Halves]:
    """Scale and split the rows of ``a`` [n, d] and ``b`` [m, d], and compute their norms.

    Args:
        a: points, float32, or a dtype of at most 11 significant bits.
        b: points, of the dtype of ``a``.
        depth: d is padded to a multiple of this.
        parts: 2 for hi and lo. 1 for hi alone, which is exact for float16 and bfloat16.

    With 2 parts all rows are first moved by a common centre. That does not change distances, and reduces cancellation.
    A coordinate of the centre is the middle of the range of 64 sampled rows, if these have one sign and lie within a
    factor of 2; else it is 0. So no sampled row gets longer.

    A row whose norm is infinite or NaN becomes zeros.

    """
    centred = parts == 2
    d = a.shape[1]
    apart = centred and d > IN_PLACE
    centre = each_time(torch.empty, d if apart else 0, dtype=torch.float32, device=a.device)
    if apart:
        repeatable(_find_centre)[(triton.cdiv(d, CENTRES),)](
            a, *a.stride(), a.shape[0], b, *b.stride(), b.shape[0], d, centre,
            SAMPLES=SAMPLES, BLOCK=CENTRES, num_warps=4,
        )  # fmt: skip
    samples = SAMPLES if centred and not apart else 0
    return _launch(a, b, depth, parts=parts, norms=True, centre=centre, samples=samples)


def split_rows(a: Tensor, b: Tensor) -> tuple[Halves, Halves]:
    """Scale and split the rows of ``a`` [n, d] and ``b`` [m, d], float32. A row with infinity or NaN becomes zeros."""
    return _launch(a, b, DEPTH, parts=2, norms=False, centre=a, samples=0)


def _launch(
    a: Tensor, b: Tensor, depth: int, *, parts: int, norms: bool, centre: Tensor, samples: int
) -> tuple[Halves, Halves]:
    (n, d), m = a.shape, b.shape[0]
    width = triton.cdiv(max(d, 1), depth) * depth
    block = min(WHOLE, triton.next_power_of_2(width))
    rows = max(1, TOGETHER // block)
    first, second = _room(a, width, parts, norms), _room(b, width, parts, norms)
    repeatable(_split_both)[(triton.cdiv(n, rows) + triton.cdiv(m, rows),)](
        a, *a.stride(), n, first.data, first.lo, first.norms, first.scales,
        b, *b.stride(), m, second.data, second.lo, second.norms, second.scales, d, width, centre,
        CENTRE=norms and parts == 2 and not samples, SAMPLES=samples, NORMS=norms, PARTS=parts,
        ROWS=rows, BLOCK=block, LOOP=width > block, num_warps=warps_for(rows * block),
    )  # fmt: skip
    return first, second


def warps_for(elements: int) -> int:
    """Return the warps of a program that splits ``elements`` elements: 32 elements for each thread."""
    return max(4, elements // 1024)


def _room(x: Tensor, width: int, parts: int, norms: bool) -> Halves:
    lo = triton.cdiv(x.shape[0], ROWS) * ROWS
    data = each_time(torch.empty, parts * lo, width, dtype=torch.float16, device=x.device)
    scales = each_time(torch.empty, x.shape[0], dtype=torch.float32, device=x.device)
    return Halves(data, lo, scales, each_time(torch.empty_like, scales) if norms else scales)


@triton.jit
def _column_peaks(x, x_row, x_col, rows, cols, peaks, SQUARE: tl.constexpr):
    across = tl.cdiv(cols, SQUARE)
    row = (tl.program_id(0) // across).to(tl.int64) * SQUARE + tl.arange(0, SQUARE)
    col = tl.program_id(0) % across * SQUARE + tl.arange(0, SQUARE)
    value = _load(x, x_row, x_col, row, col, rows, cols)
    tl.atomic_max(peaks + col, tl.max(_bits(value), axis=0), mask=col < cols, sem="relaxed")


@triton.jit
def _split_columns(x, x_row, x_col, rows, cols, peaks, halves, lo, width, scales, SQUARE: tl.constexpr):
    across = tl.cdiv(cols, SQUARE)
    row = (tl.program_id(0) // across).to(tl.int64) * SQUARE + tl.arange(0, SQUARE)
    col = tl.program_id(0) % across * SQUARE + tl.arange(0, SQUARE)
    value = _load(x, x_row, x_col, row, col, rows, cols)
    peak = tl.load(peaks + col, mask=col < cols, other=0)
    if tl.program_id(0) < across:
        tl.store(scales + col, _scale(peak), mask=col < cols)
    mask = (row < lo)[:, None] & (col < cols)[None, :]
    below = tl.cast(lo, tl.int64) * width
    _store(value, peak[None, :], halves, below, row[:, None] * width + col[None, :], mask, PARTS=2)


def split_columns(x: Tensor) -> Halves:
    """Scale and split the columns of ``x`` [d, m], float32, in place. A column with infinity or NaN becomes zeros."""
    rows, cols = x.shape
    lo, width = triton.cdiv(rows, DEPTH) * DEPTH, triton.cdiv(cols, ROWS) * ROWS
    data = each_time(torch.empty, 2 * lo, width, dtype=torch.float16, device=x.device)
    scales = each_time(torch.empty, cols, dtype=torch.float32, device=x.device)
    peaks = each_time(torch.zeros, cols, dtype=torch.int32, device=x.device)
    grid = (triton.cdiv(lo, SQUARE) * triton.cdiv(cols, SQUARE),)
    repeatable(_column_peaks)[grid](x, *x.stride(), rows, cols, peaks, SQUARE=SQUARE, num_warps=4)
    repeatable(_split_columns)[grid](
        x, *x.stride(), rows, cols, peaks, data, lo, width, scales, SQUARE=SQUARE, num_warps=4
    )
    return Halves(data, lo, scales, scales)
