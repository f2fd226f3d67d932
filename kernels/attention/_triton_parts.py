"""What the kernels of attention share: tiles of rows of a tensor [batch, heads, length, d], and the mask."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_and_head(tiles, heads, together, CAUSAL: tl.constexpr):
    """Return the tile and the head of this program. ``together`` heads share the L2 cache, their tiles in turn.

    Causal: the last tile sees most keys, so it starts first, and short ones fill the gaps at the end.
    """
    section = tl.program_id(0) // (together * tiles)
    within = tl.program_id(0) % (together * tiles)
    size = tl.minimum(heads - section * together, together)
    tile = within // size
    return tiles - 1 - tile if CAUSAL else tile, section * together + within % size


@triton.jit
def load_rows(
    source, batch, head, row, rows, d, s_batch, s_head, s_row, s_col, ROWS: tl.constexpr, D: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """Load ROWS rows of a head from ``row`` on, with 0 outside. ``source`` is a descriptor with TMA, else a pointer."""
    if TMA:
        return source.load([batch, head, row, 0]).reshape([ROWS, D])
    else:  # noqa: RET505 - without it both branches are compiled
        down, across = tl.arange(0, ROWS), tl.arange(0, D)
        start = source + batch.to(tl.int64) * s_batch + head.to(tl.int64) * s_head + tl.cast(row, tl.int64) * s_row
        inside = (row + down < rows)[:, None] & (across < d)[None, :]
        return tl.load(start + down[:, None] * s_row + across[None, :] * s_col, mask=inside, other=0.0)


@triton.jit
def store_rows(
    target, tile, batch, head, row, rows, d, s_batch, s_head, s_row, s_col, ROWS: tl.constexpr, D: tl.constexpr
):
    """Store ``tile`` [ROWS, D] in the rows of a head from ``row`` on, as far as they are inside."""
    down, across = tl.arange(0, ROWS), tl.arange(0, D)
    start = target + batch.to(tl.int64) * s_batch + head.to(tl.int64) * s_head + tl.cast(row, tl.int64) * s_row
    inside = (row + down < rows)[:, None] & (across < d)[None, :]
    at = start + down[:, None] * s_row + across[None, :] * s_col
    tl.store(at, tile.to(target.dtype.element_ty), mask=inside)


@triton.jit
def visible(row, col, kv_length, offset, CAUSAL: tl.constexpr):
    """Return which keys ``col`` the queries ``row`` see, of shapes that broadcast."""
    inside = col < kv_length
    return inside & (col <= row + offset) if CAUSAL else inside
