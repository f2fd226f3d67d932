"""attention: what its tolerance passes and refuses, its reference in blocks, and what it counts."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from runner.models import attention_errors

FIELDS = {"batch": 1, "heads": 2, "kv_heads": 1, "length": 50, "kv_length": 90, "d": 24, "causal": True}
DTYPES = ["float32", "float16", "bfloat16"]
NARROWER = {"float32": torch.bfloat16, "float16": torch.float8_e4m3fn, "bfloat16": torch.float8_e4m3fn}


def attention_of(name):
    """The function of an implementation. Importing some takes seconds, which not every process need spend."""
    return import_module(f"runner.kernels.attention.{name}").attention


def in_its_own_type(q, k, v, *, causal):
    """Attention as one writes it first: each step rounds to the type of the tensors."""
    scores = q @ k.transpose(-1, -2) / q.shape[3] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(k.shape[2] - q.shape[2] + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["naive", "online", "math", "flash", None])
def test_honest_arithmetic_is_right(make, error, dtype, kernel):
    function = attention_of(kernel) if kernel else in_its_own_type
    for scale in (1, 8):
        workload, (q, *others) = make("attention", dtype=dtype, pass_="fwd_bwd", **FIELDS)
        inputs = (q * scale, *others)
        assert error(workload.reference(*inputs), workload.call(function, inputs).run()) < 0.9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", ["a key too many", "no mask", "inputs one type narrower"])
@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_wrong_arithmetic_is_wrong(make, error, dtype, wrong, pass_):
    def function(q, k, v, *, causal):
        if wrong == "inputs one type narrower":
            q, k, v = ((x.detach().to(NARROWER[dtype]).to(x.dtype) - x).detach() + x for x in (q, k, v))
        if wrong == "a key too many":
            mask = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2] + 1).bool()
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return attention_of("naive")(q, k, v, causal=causal and wrong != "no mask")

    workload, inputs = make("attention", dtype=dtype, pass_=pass_, **FIELDS)
    assert error(workload.reference(*inputs), workload.call(function, inputs).run()) > 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [0, 3])
def test_honest_gradients_of_a_single_query_are_right(make, error, dtype, seed):
    fields = FIELDS | {"heads": 8, "kv_heads": 8, "length": 1, "kv_length": 1024}
    workload, _ = make("attention", dtype=dtype, pass_="bwd", **fields)
    inputs = workload.draw_inputs("cpu", seed)
    expected = workload.reference(*inputs)
    for kernel in ("naive", "online", "math", "flash"):
        assert error(expected, workload.call(attention_of(kernel), inputs).run()) < 1, kernel


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", ["1 % too large", "d off by one"])
def test_a_factor_that_all_elements_have_in_common_is_wrong(make, error, dtype, wrong):
    """In bfloat16 no single element tells."""
    factors = (1.0, 1.01) if wrong == "1 % too large" else ((64 / 65) ** 0.5, 1.0)
    sizes = {"kv_heads": 2, "length": 512, "kv_length": 512, "d": 64, "causal": False}
    workload, (q, k, v) = make("attention", dtype=dtype, **(FIELDS | sizes))
    y = attention_of("naive")(q * factors[0], k, v * factors[1])
    assert error(workload.reference(q, k, v), [y]) > 1
    assert error(workload.reference(q, k, v), [attention_of("naive")(q, k, v)]) < 0.5
    expected = workload.expected_outputs((q, k, v))
    result = expected.check([y])
    assert not result.correct
    assert dtype != "bfloat16" or "% off in common, and " in result.reason


class Product(torch.autograd.Function):
    """A product whose factors are cut off to TF32, or rounded to bfloat16, backward too."""

    @staticmethod
    def forward(ctx, a, b, narrow):
        ctx.save_for_backward(a, b)
        ctx.narrow = narrow
        return narrow(a) @ narrow(b)

    @staticmethod
    def backward(ctx, dy):
        (a, b), narrow = ctx.saved_tensors, ctx.narrow
        return narrow(dy) @ narrow(b).mT, narrow(a).mT @ narrow(dy), None


@pytest.mark.parametrize("data", ["normal", "uniform"])
@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
@pytest.mark.parametrize("length", [1, 200])
def test_factors_cut_off_to_tf32_are_right_where_it_is_allowed_and_bfloat16_is_not(make, error, data, pass_, length):
    """Cut off, they are too small in common, by 0.2 % in dq and dk."""

    def attention(narrow):
        def function(q, k, v):
            k, v = (x.repeat_interleave(2, 1) for x in (k, v))
            return Product.apply((Product.apply(q, k.mT, narrow) / q.shape[3] ** 0.5).softmax(-1), v, narrow)

        return function

    sizes = {"heads": 4, "kv_heads": 2, "length": length, "kv_length": 300, "d": 64, "causal": False}
    workload, inputs = make("attention", dtype="float32", tf32=True, data=data, pass_=pass_, **(FIELDS | sizes))
    expected = workload.reference(*inputs)

    def cut(x):
        return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

    assert error(expected, workload.call(attention(cut), inputs).run()) < 1
    if data == "normal" and length > 1:
        assert error(expected, workload.call(attention(lambda x: x.bfloat16().float()), inputs).run()) > 1


@pytest.mark.parametrize("block", [1, 200, 5000])
def test_blocks_do_not_change_the_reference(make, monkeypatch, block):
    workload, inputs = make("attention", dtype="float32", pass_="fwd_bwd", **(FIELDS | {"heads": 4, "kv_heads": 2}))
    whole = workload.reference(*inputs)
    monkeypatch.setattr(attention_errors, "BLOCK", block)
    for one, other in zip(whole, workload.reference(*inputs), strict=True):
        assert torch.allclose(one.value, other.value, rtol=1e-12, atol=1e-14)
        assert torch.allclose(one.atol, other.atol, rtol=1e-9)


def test_it_counts_the_pairs_that_are_seen(make):
    for causal, pairs in ((False, 50 * 90), (True, sum(range(41, 91)))):
        workload, _ = make("attention", dtype="float16", **(FIELDS | {"causal": causal}))
        assert workload.flops() == 2 * 2 * 2 * 24 * pairs
    assert workload.bytes_min() == 2 * (2 * 2 * 50 + 2 * 90) * 24


def test_interleaved_is_the_order_of_a_projection(make):
    _, (q, k, *_) = make("attention", dtype="float32", layout="interleaved", **FIELDS)
    assert q.stride() == (50 * 2 * 24, 24, 2 * 24, 1)
    assert k.shape == (1, 1, 90, 24)


def test_sizes_that_do_not_fit_are_refused(make):
    with pytest.raises(ValueError, match="heads=3 is not a multiple of kv_heads=2"):
        make("attention", dtype="float32", **(FIELDS | {"heads": 3, "kv_heads": 2}))
    with pytest.raises(ValueError, match="the first of 91 queries would see none of 90 keys"):
        make("attention", dtype="float32", **(FIELDS | {"length": 91}))
