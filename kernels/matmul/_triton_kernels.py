"""Triton kernels of ``triton.py``, which describes when each is used."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tensor_cores import gdc_wait, place, promote


@triton.jit
def _store(y, y_ptr, m, n, row, col, tile, UNIT: tl.constexpr):
    if y is not None:
        y.store([row, col], tile.to(y.dtype))
    else:
        rows = row + tl.arange(0, tile.shape[0])
        cols = col + tl.arange(0, tile.shape[1])
        width = n // UNIT * UNIT  # n, of which the compiler then knows that UNIT columns can be stored at once
        inside = (rows < m)[:, None] & (cols < width)[None, :]
        at = rows[:, None].to(tl.int64) * width + cols[None, :]
        tl.store(y_ptr + at, tile.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scaled(acc, scale_a_ptr, scale_b_ptr):
    if scale_a_ptr is not None and scale_b_ptr is not None:
        acc *= tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
    elif scale_a_ptr is not None:
        acc *= tl.load(scale_a_ptr)
    elif scale_b_ptr is not None:
        acc *= tl.load(scale_b_ptr)
    return acc


@triton.jit
def _elements(ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the places of the elements of a tile in its partial sums."""
    return tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]


@triton.jit
def _is_last(counter_ptr, PARTS: tl.constexpr):
    """Count this program, which has stored its partial sums, and return whether it is the last one of a tile."""
    tl.debug_barrier()  # all threads have stored before one of them counts
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == PARTS - 1
    if last:
        tl.store(counter_ptr, 0)  # for the next launch
    return last


@triton.jit
def _sum_of(parts_ptr, at, AREA: tl.constexpr, PARTS: tl.constexpr):
    """Add up the partial sums of a tile, always in the same order, so that the same product has the same bits."""
    total = tl.load(parts_ptr + at, cache_modifier=".cg")
    for part in range(1, PARTS):
        total += tl.load(parts_ptr + part * AREA + at, cache_modifier=".cg")
    return total


@triton.jit
def _tile(operand, row, block, ALONG_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the tile [rows, BLOCK_K] of an operand that begins in ``row``."""
    if ALONG_K:
        return operand.load([row, block * BLOCK_K])
    else:  # noqa: RET505 - without it both branches are compiled
        return operand.load([block * BLOCK_K, row]).T


@triton.jit
def matmul_descriptors(
    a,
    b,
    b_rest,  # of the last third of a tile's columns; None: b has tiles of all columns
    y,  # None: its rows are not aligned
    y_ptr,
    parts_ptr,
    counters_ptr,
    scale_a_ptr,
    scale_b_ptr,
    m,
    n,
    k,
    A_ALONG_K: tl.constexpr,  # the descriptor of a is [m, k], else [k, m]; that of b is [n, k], else [k, n]
    B_ALONG_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # a power of 2, or three times one
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PIECES: tl.constexpr,  # pieces of a tile's columns that are stored one after the other: 1 or 2; 3 with ``b_rest``
    UNIT: tl.constexpr,  # without a descriptor of y, columns that a thread stores at once: n is a multiple
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,  # start before the previous kernel of the stream, which copies operands, has ended
):
    """Multiply a [m, k] by b [k, n]. Tiles are read by descriptors, and a program computes several of them.

    Sums are float32. ``scale_a_ptr`` and ``scale_b_ptr`` point to one float32 each, or are None. With SPLIT_K > 1, as
    many programs share a tile. Each stores its partial sums; the last one to arrive, by a counter of the tile that is 0
    before and after, adds them up.
    """
    if EARLY:
        gdc_wait()
    width: tl.constexpr = BLOCK_N // PIECES
    main: tl.constexpr = BLOCK_N if b_rest is None else 2 * width
    piece: tl.constexpr = BLOCK_M * width
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    blocks = tl.cdiv(k, BLOCK_K)
    for item in tl.range(tl.program_id(0), tiles * SPLIT_K, tl.num_programs(0), flatten=SPLIT_K == 1):
        row, col = place(item % tiles, tiles_m, tiles_n, GROUP_M)
        top, left = row * BLOCK_M, col * BLOCK_N
        part = item // tiles
        acc = tl.zeros((BLOCK_M, main), tl.float32)
        rest = tl.zeros((BLOCK_M, width), tl.float32)
        for block in tl.range(part * blocks // SPLIT_K, (part + 1) * blocks // SPLIT_K, num_stages=STAGES):
            a_tile = _tile(a, top, block, A_ALONG_K, BLOCK_K)
            b_tile = _tile(b, left, block, B_ALONG_K, BLOCK_K)
            acc = tl.dot(a_tile, b_tile.T, acc, input_precision="tf32")  # float32 gets here only if tf32 is allowed
            if b_rest is not None:
                b_tile = _tile(b_rest, left + main, block, B_ALONG_K, BLOCK_K)
                rest = tl.dot(a_tile, b_tile.T, rest, input_precision="tf32")
        if PIECES == 1:
            sums = (acc, acc, acc)
        else:
            first, second = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, width)), (0, 2, 1)))
            sums = (first, second, rest)
        if SPLIT_K == 1:
            for at in tl.static_range(PIECES):
                scaled = _scaled(sums[at], scale_a_ptr, scale_b_ptr)
                _store(y, y_ptr, m, n, top, left + at * width, scaled, UNIT)
        else:
            inside = _elements(BLOCK_M, width)
            of_tile = parts_ptr + (item % tiles).to(tl.int64) * (SPLIT_K * PIECES * piece)
            for at in tl.static_range(PIECES):
                tl.store(of_tile + (part * PIECES + at) * piece + inside, sums[at])
            if _is_last(counters_ptr + item % tiles, SPLIT_K):
                for at in tl.static_range(PIECES):
                    total = _sum_of(of_tile + at * piece, inside, PIECES * piece, SPLIT_K)
                    scaled = _scaled(total, scale_a_ptr, scale_b_ptr)
                    _store(y, y_ptr, m, n, top, left + at * width, scaled, UNIT)


@triton.jit
def matmul_skinny(
    wide,
    narrow,
    y_ptr,
    parts_ptr,
    counters_ptr,
    scale_a_ptr,
    scale_b_ptr,
    rows,
    cols,
    k,
    stride_row,
    stride_col,
    WIDE_ALONG_K: tl.constexpr,
    NARROW_ALONG_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,  # rows of the narrow operand
    BLOCK_COLS: tl.constexpr,  # rows of the wide one
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    ROTATED: tl.constexpr,  # each tile begins one block farther along k than the previous one
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,  # start before the previous kernel of the stream, which copies operands, has ended
):
    """Multiply if one side has few rows or columns. Each element of ``wide`` is read once; sums are float32.

    y is [rows, cols] with the given strides. There is one program for each block of the wide side and part of k. Parts
    are added up as in ``matmul_descriptors``.
    """
    if EARLY:
        gdc_wait()
    tile = tl.program_id(0) // SPLIT_K
    part = tl.program_id(0) % SPLIT_K
    blocks = tl.cdiv(k, BLOCK_K)
    first = part * blocks // SPLIT_K
    count = (part + 1) * blocks // SPLIT_K - first
    acc = tl.zeros((BLOCK_COLS, BLOCK_ROWS), tl.float32)
    for step in tl.range(0, count, num_stages=STAGES):
        block = first + ((step + tile) % count if ROTATED else step)
        if WIDE_ALONG_K:
            wide_tile = wide.load([tile * BLOCK_COLS, block * BLOCK_K])
        else:
            wide_tile = wide.load([block * BLOCK_K, tile * BLOCK_COLS]).T
        if NARROW_ALONG_K:  # noqa: SIM108  # the two have different types, which Triton's ternary does not accept
            narrow_tile = narrow.load([0, block * BLOCK_K]).T
        else:
            narrow_tile = narrow.load([block * BLOCK_K, 0])
        acc = tl.dot(wide_tile, narrow_tile, acc, input_precision="tf32")
    col = tile * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    row = tl.arange(0, BLOCK_ROWS)
    inside = (col < cols)[:, None] & (row < rows)[None, :]
    y_ptr += col[:, None].to(tl.int64) * stride_col + row[None, :].to(tl.int64) * stride_row
    if SPLIT_K == 1:
        acc = _scaled(acc, scale_a_ptr, scale_b_ptr)
        tl.store(y_ptr, acc.to(y_ptr.dtype.element_ty), mask=inside)
    else:
        area: tl.constexpr = BLOCK_COLS * BLOCK_ROWS
        at = _elements(BLOCK_COLS, BLOCK_ROWS)
        parts_ptr += tile.to(tl.int64) * (SPLIT_K * area)
        tl.store(parts_ptr + part * area + at, acc)
        if _is_last(counters_ptr + tile, SPLIT_K):
            total = _scaled(_sum_of(parts_ptr, at, area, SPLIT_K), scale_a_ptr, scale_b_ptr)
            tl.store(y_ptr, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _multiple(x, UNIT: tl.constexpr):
    """Return ``x`` rounded up to UNIT. The product tells the compiler that UNIT elements can be loaded at once."""
    return (x + (UNIT - 1)) // UNIT * UNIT


@triton.jit
def _rounded(x):
    """Round float32 to the 11 bits of tf32. Near the largest float32 this gives infinity."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _add_product(acc, a_tile, b_tile, one, PRECISION: tl.constexpr):
    """Return ``acc`` plus the product of two tiles."""
    if PRECISION == "tf32x3":
        a_big = _rounded(a_tile)
        b_big = _rounded(b_tile)
        # Tensor cores ignore the bits of a factor beyond the 11th: at most one of the 12 of the small part.
        part = tl.dot(a_tile - a_big, b_big, input_precision="tf32")
        part = tl.dot(a_big, b_tile - b_big, part, input_precision="tf32")
        part = tl.dot(a_big, b_big, part, input_precision="tf32")
        return promote(acc, part, one)  # tensor cores truncate where float32 arithmetic rounds
    else:  # noqa: RET505 - without it both branches are compiled
        return tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
def matmul_pointers(
    a_ptr,
    b_ptr,
    y_ptr,
    parts_ptr,
    counters_ptr,
    scale_a_ptr,
    scale_b_ptr,
    m,
    n,
    k,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_ym,
    stride_yn,
    one,  # 1.0, see ``promote``
    ACCUMULATE: tl.constexpr,  # the dtype of sums
    PRECISION: tl.constexpr,  # of float32 products: "tf32", "tf32x3" or "ieee"
    A_ALONG_K: tl.constexpr,  # neighbours in memory are neighbours along k, else along m or n
    B_ALONG_K: tl.constexpr,
    A_UNIT: tl.constexpr,  # elements that can be loaded at once: rows begin at multiples of it; they end there, or in 0
    B_UNIT: tl.constexpr,
    A_AHEAD: tl.constexpr,  # load the next tile into registers; cp.async copies at least 4 bytes
    B_AHEAD: tl.constexpr,
    EVEN_K: tl.constexpr,  # k is a multiple of BLOCK_K, so it needs no mask
    LONG: tl.constexpr,  # a length, rounded up to a tile, needs more than 32 bits
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Multiply a [m, k] by b [k, n] of any strides. Elements are read by pointers, with masks at the edges.

    Sums are kept in ``ACCUMULATE``. ``scale_a_ptr`` and ``scale_b_ptr`` point to one float32 each, or are None. Parts
    are added up as in ``matmul_descriptors``.
    """
    if LONG:
        zero = tl.full((), 0, tl.int64)
        m, n, k = m + zero, n + zero, k + zero  # a sum, since a length of 1 is a constant and has no method ``to``
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    tile = tl.program_id(0) % tiles
    row, col = place(tile, tiles_m, tiles_n, GROUP_M)
    part = tl.program_id(0) // tiles
    blocks = tl.cdiv(k, BLOCK_K)
    # The first parts take one block more, if the blocks cannot be shared out equally.
    first = part * (blocks // SPLIT_K) + tl.minimum(part, blocks % SPLIT_K)
    last = (part + 1) * (blocks // SPLIT_K) + tl.minimum(part + 1, blocks % SPLIT_K)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = col * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    if A_ALONG_K:
        a_m, a_k, step_am, step_ak = m, _multiple(k, A_UNIT), _multiple(stride_am, A_UNIT), stride_ak
    else:
        a_m, a_k, step_am, step_ak = _multiple(m, A_UNIT), k, stride_am, _multiple(stride_ak, A_UNIT)
    if B_ALONG_K:
        b_n, b_k, step_bn, step_bk = n, _multiple(k, B_UNIT), _multiple(stride_bn, B_UNIT), stride_bk
    else:
        b_n, b_k, step_bn, step_bk = _multiple(n, B_UNIT), k, stride_bn, _multiple(stride_bk, B_UNIT)
    in_m = (rows < a_m)[:, None]
    in_n = (cols < b_n)[None, :]
    # int64, because int32 offsets overflow at 2**31 elements.
    step = tl.full((), BLOCK_K, tl.int64)
    a_at = a_ptr + first * step * step_ak + rows[:, None].to(tl.int64) * step_am + ks[None, :].to(tl.int64) * step_ak
    b_at = b_ptr + first * step * step_bk + ks[:, None].to(tl.int64) * step_bk + cols[None, :].to(tl.int64) * step_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATE)
    if A_AHEAD:
        a_next = tl.load(a_at, mask=in_m & (ks < a_k - first * BLOCK_K)[None, :], other=0.0)
    if B_AHEAD:
        b_next = tl.load(b_at, mask=in_n & (ks < b_k - first * BLOCK_K)[:, None], other=0.0)
    for block in tl.range(first, last, num_stages=STAGES):
        if A_AHEAD:
            a_tile = a_next
            a_at += step * step_ak
            a_next = tl.load(a_at, mask=in_m & (ks < a_k - (block + 1) * BLOCK_K)[None, :], other=0.0)
        else:
            a_mask = in_m if EVEN_K else in_m & (ks < a_k - block * BLOCK_K)[None, :]
            a_tile = tl.load(a_at, mask=a_mask, other=0.0)
            a_at += step * step_ak
        if B_AHEAD:
            b_tile = b_next
            b_at += step * step_bk
            b_next = tl.load(b_at, mask=in_n & (ks < b_k - (block + 1) * BLOCK_K)[:, None], other=0.0)
        else:
            b_mask = in_n if EVEN_K else in_n & (ks < b_k - block * BLOCK_K)[:, None]
            b_tile = tl.load(b_at, mask=b_mask, other=0.0)
            b_at += step * step_bk
        acc = _add_product(acc, a_tile, b_tile, one, PRECISION)
    if PRECISION == "tf32x3":
        # Infinity, NaN and what rounds to infinity make the small parts infinite or NaN. Then float32 arithmetic
        # computes this tile again, one term at a time.
        lost = tl.where(tl.abs(acc) < float("inf"), 0, 1)
        if tl.max(tl.max(lost, axis=1), axis=0) > 0:
            acc = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATE)
            for term in range(first * BLOCK_K, tl.minimum(last * BLOCK_K, k)):
                at = term + tl.full((), 0, tl.int64)
                a_term = tl.load(a_ptr + rows.to(tl.int64) * stride_am + at * stride_ak, mask=rows < m, other=0.0)
                b_term = tl.load(b_ptr + cols.to(tl.int64) * stride_bn + at * stride_bk, mask=cols < n, other=0.0)
                acc += a_term[:, None] * b_term[None, :]
    if SPLIT_K == 1:
        y_ptr += part.to(tl.int64) * m * n  # of part 0. Without it, addresses are computed before the loop, and spill
        here = True
    else:
        area: tl.constexpr = BLOCK_M * BLOCK_N
        at = _elements(BLOCK_M, BLOCK_N)
        parts_ptr += tile.to(tl.int64) * (SPLIT_K * area)
        tl.store(parts_ptr + part * area + at, acc)
        here = _is_last(counters_ptr + tile, SPLIT_K)
        if here:
            acc = _sum_of(parts_ptr, at, area, SPLIT_K)
    acc = _scaled(acc, scale_a_ptr, scale_b_ptr)
    y_at = y_ptr + rows[:, None].to(tl.int64) * stride_ym + cols[None, :].to(tl.int64) * stride_yn
    tl.store(y_at, acc.to(y_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (cols < n)[None, :] & here)
