"""Scaled dot-product attention: y_i = sum_j p_ij v_j, with the weights p_i = softmax_j(q_i k_j / d^(1/2)) of query i.

attention(q, k, v, *, causal) -> y

    q       [batch, heads, length, d]        float16 | bfloat16 | float32
    k, v    [batch, kv_heads, kv_length, d]  dtype of q; query head h reads head h // (heads // kv_heads) of k and v
    causal  True: query i sees the keys up to i + kv_length - length, so the last query sees all of them
    y       shape and dtype of q             float16 and bfloat16 are added in float32

All tensors may have any strides. With causal=True, kv_length is at least length, so each query sees a key.

Implementations that autograd can differentiate have a backward as well (``workload.pass=bwd``): dq, dk and dv.
"""
