"""Attention by the backends of torch and by flex_attention: refusals, masks, and calls that are compiled."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from runner.kernels.unsupported import Unsupported

Q, K = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)


def attention_of(name):
    """The function of an implementation. Importing some takes seconds, which not every process need spend."""
    return import_module(f"runner.kernels.attention.{name}").attention


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_backend_of_gpus_is_refused_on_a_cpu(backend, compiled):
    attention = attention_of(backend)
    if compiled:
        attention = torch.compile(attention, backend="eager")
    with pytest.raises(Exception, match=f"torch has its backend {backend} on GPUs alone; use device=cuda"):
        attention(Q, Q, Q)


def test_a_backend_says_why_it_refuses():
    wide = torch.randn(1, 2, 5, 16, dtype=torch.float16)
    with pytest.raises(Unsupported, match="torch's backend flash does not take these tensors"):
        attention_of("flash")(wide, wide, wide.expand(2, 2, 5, 16)[:, :, :, :8])


@pytest.mark.parametrize("kernel", ["torch", "math", "flash"])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_a_causal_mask_ends_with_the_last_key(kernel, length):
    q = torch.randn(1, 2, length, 16)
    try:
        y = attention_of(kernel)(q, K, K, causal=True)
    except Unsupported:
        assert (kernel, length) == ("flash", 5)  # torch has no causal flash attention of fewer queries on a CPU
        return
    assert torch.allclose(y, attention_of("naive")(q, K, K, causal=True), atol=1e-5)


def test_a_compiled_backend_is_that_backend():
    math = attention_of("math")
    compiled = torch.compile(math, backend="eager", fullgraph=True)
    assert torch.equal(compiled(Q, Q, Q), math(Q, Q, Q))


@pytest.mark.parametrize(("length", "kv_length"), [(1, 300), (128, 128), (129, 256), (300, 700)])
def test_the_mask_of_flex_is_that_of_all_pairs(length, kv_length):
    from torch.nn.attention.flex_attention import create_block_mask

    from runner.kernels.attention import flex

    mine = flex._causal(length, kv_length, torch.device("cpu"))

    def sees(batch, head, query, key):
        return query + kv_length - length >= key

    torchs = create_block_mask(sees, None, None, length, kv_length, device="cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mine, name), getattr(torchs, name))
    assert torch.equal(mine.to_dense(), torchs.to_dense())
