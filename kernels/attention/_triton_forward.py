"""Forward of attention in Triton: a program computes a tile of queries over all keys that they see.

The scores of a block of keys stay in registers (Dao et al. 2022, arXiv:2205.14135). For each query a program keeps the
largest score so far, the sum of weights relative to it, and the weighted sum of values, and rescales both sums where
the largest score grows. Powers are of 2: log2(e) is a part of the scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._triton_parts import load_rows, store_rows, tile_and_head, visible

LOWEST = tl.constexpr(-3.4028234e38)  # finite: of keys whose scores are all -inf none has a weight


@triton.jit
def attention_forward(
    q, k, v, o, lse,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, o_b, o_h, o_l, o_d,
    all_heads, together, heads, group, length, kv_length, d, scale,
    CAUSAL: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile, both = tile_and_head(tl.cdiv(length, BM), all_heads, together, CAUSAL)
    batch, head = both // heads, both % heads
    kv_head, start, offset = head // group, tile * BM, kv_length - length
    row = start + tl.arange(0, BM)
    queries = load_rows(q, batch, head, start, length, d, q_b, q_h, q_l, q_d, BM, D, TMA)
    # Every query of the tile sees the keys before ``whole``; none sees those from ``end`` on.
    whole, end = kv_length // BN * BN, kv_length
    if CAUSAL:
        whole = (start + offset + 1) // BN * BN
        end = tl.minimum(start + BM + offset, kv_length)
    largest = tl.full([BM], LOWEST, tl.float32)
    total = tl.zeros([BM, PARTS], tl.float32)  # the columns of a thread; their sum at last
    y = tl.zeros([BM, D], tl.float32)
    for key in tl.range(0, end, BN, num_stages=STAGES):
        keys = load_rows(k, batch, kv_head, key, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
        s = tl.dot(queries, keys.T, input_precision=PRECISION)
        if key >= whole:
            col = key + tl.arange(0, BN)
            s = tl.where(visible(row[:, None], col[None, :], kv_length, offset, CAUSAL), s, -float("inf"))
        now = tl.maximum(largest, tl.max(s, 1) * scale)
        weights, factor = tl.exp2(s * scale - now[:, None]), tl.exp2(largest - now)
        largest = now
        total = total * factor[:, None] + tl.sum(weights.reshape([BM, BN // PARTS, PARTS]), 1)
        values = load_rows(v, batch, kv_head, key, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
        y = tl.dot(weights.to(values.dtype), values, y * factor[:, None], input_precision=PRECISION)
    total_of_row = tl.sum(total, 1)
    store_rows(o, y / total_of_row[:, None], batch, head, start, length, d, o_b, o_h, o_l, o_d, BM, D)
    tl.store(lse + both.to(tl.int64) * length + row, largest + tl.log2(total_of_row), mask=row < length)
