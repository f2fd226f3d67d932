"""A block of a decoder with norms before its parts: x + attention(norm(x)), and then x + mlp(norm(x)).

transformer_block(x, ..., *, style, heads, kv_heads, eps) -> y

    style     "llama": RMSNorm, rotary embedding (halves of a head, arXiv:2104.09864), silu(gate) * up, no biases
              "gpt2": LayerNorm, GELU in the tanh form, biases
    x, y      [batch, length, dim]  float32 | bfloat16
    ...       tensors in the order in which they are used, with the weights of linear layers [out, in]: for llama the
              cosines and sines of the rotary angles [2, length, d / 2], float32; norm [dim]; q, k and v together
              [(heads + 2 kv_heads) d, dim]; output of the attention [dim, heads d]; norm [dim]; up [hidden, dim], for
              llama gate and up together [2 hidden, dim]; down [dim, hidden]. For gpt2 a bias follows each weight
    heads, kv_heads  of queries, and of keys and values; the attention is causal
    eps       is added to the mean of the squares, or to the variance

Autograd can differentiate it, and torch.autocast around it lets its products compute in 16 bits.
"""
