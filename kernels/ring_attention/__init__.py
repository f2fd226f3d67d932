"""Attention of a sequence that is split over ranks: each has some queries, and as many keys and values.

ring_attention(q, k, v, *, causal, variant) -> y

    q        [batch, heads, length / ranks, d]     float16 | bfloat16 | float32; the queries of this rank
    k, v     [batch, kv_heads, length / ranks, d]  dtype of q; of the same positions; query head h reads head
             h // (heads // kv_heads)
    causal   True: a query sees the keys up to its own position in the whole sequence
    variant  "ring": rank r has the r-th part of the sequence (Liu et al. 2023, arXiv:2310.01889); "striped": it has
             positions r, r + ranks, r + 2 ranks, ... (Brandon et al. 2023, arXiv:2311.09431)
    y        shape and dtype of q; of these queries over the keys of all ranks

Ranks are those of the default process group of torch.distributed.
"""
