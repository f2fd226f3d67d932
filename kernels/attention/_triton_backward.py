"""Backward of attention in Triton, from q, k, v, o, do, and the logarithm of each query's sum of weights.

The weights are computed again (Dao 2023, arXiv:2307.08691), by two kernels: one computes dk and dv of a block of keys
over all queries that see it, the other dq of a tile of queries over all keys that it sees. A single kernel that adds
its parts of dq to memory has five products instead of seven, but needs more registers. At a length of 4096 on an H200
it reached 0.56 of cuDNN at d=128 and 0.85 at d=64, two kernels 0.78 and 0.91; and the bits of its dq varied between
calls.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._triton_parts import load_rows, store_rows, tile_and_head, visible


@triton.jit
def attention_backward_start(
    o, do, delta, o_b, o_h, o_l, o_d, do_b, do_h, do_l, do_d, heads, length, d, D: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """Delta = sum o do of each query."""
    tiles = tl.cdiv(length, BM)
    start, both = tl.program_id(0) % tiles * BM, tl.program_id(0) // tiles
    batch, head = both // heads, both % heads
    row = start + tl.arange(0, BM)
    outputs = load_rows(o, batch, head, start, length, d, o_b, o_h, o_l, o_d, BM, D, False).to(tl.float32)
    gradients = load_rows(do, batch, head, start, length, d, do_b, do_h, do_l, do_d, BM, D, False).to(tl.float32)
    tl.store(delta + both.to(tl.int64) * length + row, tl.sum(outputs * gradients, 1), mask=row < length)


@triton.jit
def _of_queries(
    q, do, keys, values, lse, delta, dk, dv, batch, head, both, start, first, length, kv_length, offset, d, scale,
    q_b, q_h, q_l, q_d, do_b, do_h, do_l, do_d,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return dk and dv of the keys from ``first`` on with the part of the queries from ``start`` on."""
    row = start + tl.arange(0, BM)
    inside, at = row < length, both.to(tl.int64) * length + row
    queries = load_rows(q, batch, head, start, length, d, q_b, q_h, q_l, q_d, BM, D, TMA)
    s = tl.dot(keys, queries.T, input_precision=PRECISION)
    p = tl.exp2(s * scale - tl.load(lse + at, mask=inside, other=float("inf"))[None, :])
    if MASKED:
        col = first + tl.arange(0, BN)
        p = tl.where(visible(row[None, :], col[:, None], kv_length, offset, CAUSAL), p, 0.0)
    gradients = load_rows(do, batch, head, start, length, d, do_b, do_h, do_l, do_d, BM, D, TMA)
    dp = tl.dot(values, gradients.T, input_precision=PRECISION)
    dv = tl.dot(p.to(keys.dtype), gradients, dv, input_precision=PRECISION)
    ds = p * (dp - tl.load(delta + at, mask=inside, other=0.0)[None, :])
    return tl.dot(ds.to(keys.dtype), queries, dk, input_precision=PRECISION), dv


@triton.jit
def attention_backward_keys(
    q, k, v, do, lse, delta, dk, dv,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, do_b, do_h, do_l, do_d,
    dk_b, dk_h, dk_l, dk_d, dv_b, dv_h, dv_l, dv_d,
    all_heads, together, kv_heads, group, length, kv_length, d, scale, factor,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Dk and dv of a block of keys, in all query heads of its group."""
    # Causal: the first block is seen by most queries, and starts first.
    block, both_kv = tile_and_head(tl.cdiv(kv_length, BN), all_heads, together, False)
    first, batch, kv_head, offset = block * BN, both_kv // kv_heads, both_kv % kv_heads, kv_length - length
    keys = load_rows(k, batch, kv_head, first, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
    values = load_rows(v, batch, kv_head, first, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
    dk_sum = tl.zeros([BN, D], tl.float32)
    dv_sum = tl.zeros([BN, D], tl.float32)
    # No query before ``begin`` sees a key of the block; all from ``whole`` on see all of it.
    begin, whole = 0, 0
    if CAUSAL:
        begin = tl.maximum(first - offset, 0) // BM * BM
        whole = tl.minimum(tl.cdiv(tl.maximum(first + BN - 1 - offset, 0), BM) * BM, tl.cdiv(length, BM) * BM)
    for member in range(group):
        head = kv_head * group + member
        both = batch * kv_heads * group + head
        for start in tl.range(begin, whole, BM, num_stages=STAGES):
            dk_sum, dv_sum = _of_queries(
                q, do, keys, values, lse, delta, dk_sum, dv_sum, batch, head, both, start, first,
                length, kv_length, offset, d, scale, q_b, q_h, q_l, q_d, do_b, do_h, do_l, do_d,
                CAUSAL, True, TMA, PRECISION, D, BM, BN,
            )  # fmt: skip
        for start in tl.range(whole, length, BM, num_stages=STAGES):
            dk_sum, dv_sum = _of_queries(
                q, do, keys, values, lse, delta, dk_sum, dv_sum, batch, head, both, start, first,
                length, kv_length, offset, d, scale, q_b, q_h, q_l, q_d, do_b, do_h, do_l, do_d,
                False, RAGGED, TMA, PRECISION, D, BM, BN,
            )  # fmt: skip
    store_rows(dk, dk_sum * factor, batch, kv_head, first, kv_length, d, dk_b, dk_h, dk_l, dk_d, BN, D)
    store_rows(dv, dv_sum, batch, kv_head, first, kv_length, d, dv_b, dv_h, dv_l, dv_d, BN, D)


@triton.jit
def _of_keys(
    k, v, queries, gradients, high, delta, dq, batch, kv_head, row, key, kv_length, offset, d, scale,
    k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return dq with the part of the keys from ``key`` on."""
    keys = load_rows(k, batch, kv_head, key, kv_length, d, k_b, k_h, k_l, k_d, BN, D, TMA)
    p = tl.exp2(tl.dot(queries, keys.T, input_precision=PRECISION) * scale - high[:, None])
    if MASKED:
        col = key + tl.arange(0, BN)
        p = tl.where(visible(row[:, None], col[None, :], kv_length, offset, CAUSAL), p, 0.0)
    values = load_rows(v, batch, kv_head, key, kv_length, d, v_b, v_h, v_l, v_d, BN, D, TMA)
    ds = p * (tl.dot(gradients, values.T, input_precision=PRECISION) - delta[:, None])
    return tl.dot(ds.to(keys.dtype), keys, dq, input_precision=PRECISION)


@triton.jit
def attention_backward_queries(
    q, k, v, do, lse, delta, dq,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, do_b, do_h, do_l, do_d, dq_b, dq_h, dq_l, dq_d,
    all_heads, together, heads, group, length, kv_length, d, scale, factor,
    CAUSAL: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Dq of a tile of queries, over all keys that they see."""
    tile, both = tile_and_head(tl.cdiv(length, BM), all_heads, together, CAUSAL)
    batch, head = both // heads, both % heads
    kv_head, start, offset = head // group, tile * BM, kv_length - length
    row = start + tl.arange(0, BM)
    inside, at = row < length, both.to(tl.int64) * length + row
    queries = load_rows(q, batch, head, start, length, d, q_b, q_h, q_l, q_d, BM, D, TMA)
    gradients = load_rows(do, batch, head, start, length, d, do_b, do_h, do_l, do_d, BM, D, TMA)
    high = tl.load(lse + at, mask=inside, other=float("inf"))
    given = tl.load(delta + at, mask=inside, other=0.0)
    sums = tl.zeros([BM, D], tl.float32)
    whole, end = kv_length // BN * BN, kv_length
    if CAUSAL:
        whole = (start + offset + 1) // BN * BN
        end = tl.minimum(start + BM + offset, kv_length)
    for key in tl.range(0, whole, BN, num_stages=STAGES):
        sums = _of_keys(
            k, v, queries, gradients, high, given, sums, batch, kv_head, row, key, kv_length, offset, d, scale,
            k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, CAUSAL, False, TMA, PRECISION, D, BN,
        )  # fmt: skip
    for key in tl.range(whole, end, BN, num_stages=STAGES):
        sums = _of_keys(
            k, v, queries, gradients, high, given, sums, batch, kv_head, row, key, kv_length, offset, d, scale,
            k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, CAUSAL, True, TMA, PRECISION, D, BN,
        )  # fmt: skip
    store_rows(dq, sums * factor, batch, head, start, length, d, dq_b, dq_h, dq_l, dq_d, BM, D)
