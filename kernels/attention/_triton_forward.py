"""Forward of attention in Triton: a program computes a tile of queries over all keys that they see.

The scores of a block of keys stay in registers (Dao et al. 2022, arXiv:2205.14135). For each query a program keeps the
largest score so far, the sum of weights relative to it, and the weighted sum of values, and rescales both sums where
the largest score grows. Powers are of 2: log2(e) is a part of the scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._triton_parts import load_rows, store_rows, visible


@triton.jit
def _weights(s, largest, row, key, kv_length, offset, scale, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Return the weights of a block, the largest scores, and the factor of what was summed before."""
    if MASKED:
        col = key + tl.arange(0, s.shape[1])
        s = tl.where(visible(row[:, None], col[None, :], kv_length, offset, CAUSAL), s, -float("inf"))
    now = tl.maximum(largest, tl.max(s, 1) * scale)
    return tl.exp2(s * scale - now[:, None]), now, tl.exp2(largest - now)


@triton.jit
def attention_forward(
    q, k, v, o, lse,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, o_b, o_h, o_l, o_d,
    heads, group, length, kv_length, d, scale,
    CAUSAL: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr, HEADS_FIRST: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Causal: the last tile sees most keys, so it starts first, and short ones fill the gaps at the end.
    tiles = tl.cdiv(length, BM)
    if HEADS_FIRST:
        of_head, number = tl.num_programs(0) // tiles, tl.program_id(0)
        tile, both = number // of_head, number % of_head
    else:
        tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    if CAUSAL:
        tile = tiles - 1 - tile
    batch, head = both // heads, both % heads
    kv_head, start, offset = head // group, tile * BM, kv_length - length
    row = start + tl.arange(0, BM)
    queries = load_rows(q, batch, head, start, length, d, q_b, q_h, q_l, q_d, BM, D, TMA)
    # Every query of the tile sees the keys before ``whole``; none sees those from ``end`` on.
    whole, end = kv_length // BN * BN, kv_length
    if CAUSAL:
        whole = (start + offset + 1) // BN * BN
        end = tl.minimum(start + BM + offset, kv_length)
    largest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    y = tl.zeros([BM, D], tl.float32)
    if AHEAD:
        # Tensor cores compute the scores of the next block while the weights of this one are computed.
        if whole > 0:
            keys = load_rows(k, batch, kv_head, 0, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
            weights, largest, factor = _weights(s, largest, row, 0, kv_length, offset, scale, CAUSAL, False)
            total = tl.sum(weights, 1)
            packed = weights.to(queries.dtype)
            keys = load_rows(k, batch, kv_head, BN, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
            for key in tl.range(BN, whole, BN, num_stages=STAGES):
                values = load_rows(v, batch, kv_head, key - BN, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
                y = tl.dot(packed, values, y * factor[:, None], input_precision=PRECISION)
                keys = load_rows(k, batch, kv_head, key + BN, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
                following = tl.dot(queries, keys.T, input_precision=PRECISION)
                weights, largest, factor = _weights(s, largest, row, key, kv_length, offset, scale, CAUSAL, False)
                total = total * factor + tl.sum(weights, 1)
                packed = weights.to(queries.dtype)
                s = following
            values = load_rows(v, batch, kv_head, whole - BN, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
            y = tl.dot(packed, values, y * factor[:, None], input_precision=PRECISION)
    else:
        for key in tl.range(0, whole, BN, num_stages=STAGES):
            keys = load_rows(k, batch, kv_head, key, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
            weights, largest, factor = _weights(s, largest, row, key, kv_length, offset, scale, CAUSAL, False)
            total = total * factor + tl.sum(weights, 1)
            values = load_rows(v, batch, kv_head, key, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
            y = tl.dot(weights.to(values.dtype), values, y * factor[:, None], input_precision=PRECISION)
    for key in tl.range(whole, end, BN, num_stages=STAGES):
        keys = load_rows(k, batch, kv_head, key, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
        s = tl.dot(queries, keys.T, input_precision=PRECISION)
        weights, largest, factor = _weights(s, largest, row, key, kv_length, offset, scale, CAUSAL, True)
        total = total * factor + tl.sum(weights, 1)
        values = load_rows(v, batch, kv_head, key, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
        y = tl.dot(weights.to(values.dtype), values, y * factor[:, None], input_precision=PRECISION)
    store_rows(o, y / total[:, None], batch, head, start, length, d, o_b, o_h, o_l, o_d, BM, D)
    tl.store(lse + both.to(tl.int64) * length + row, largest + tl.log2(total), mask=row < length)
