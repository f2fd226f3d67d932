"""transformer_block: what its automatic tolerance rejects, what an update does, and what the definition costs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from runner.kernels.attention.naive import attention
from runner.kernels.gelu.torch import gelu
from runner.kernels.layernorm.torch import layernorm
from runner.kernels.rmsnorm.torch import rmsnorm
from runner.kernels.transformer_block import _block
from runner.kernels.transformer_block.naive import transformer_block
from runner.models.mlp import ADAMW
from runner.records.bad_input import BadInput
from runner.records.options import option_class
from runner.records.schema import build

SIZES = {"batch": 2, "length": 9, "dim": 20, "heads": 4, "kv_heads": 2, "d": 6, "hidden": 28}


@pytest.fixture
def case(make, expected_of):
    """The workload, its inputs, and whether a function is right."""

    def find(style, dtype="float32", **fields):
        workload, inputs = make("transformer_block", dtype=dtype, style=style, **(SIZES | fields))
        expected = expected_of(workload, inputs)

        def is_right(function):
            return expected.check_tensors(workload.call(function, inputs).run()).correct

        return workload, inputs, is_right

    return find


def of_all_keys(q, k, v, causal):
    return attention(q, k, v)


def of_another_group(q, k, v, causal):
    return attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), causal=causal)


def gelu_of_erf(x, form):
    return F.gelu(x)


def without_bias(x, w, b, eps):
    return layernorm(x, w, torch.zeros_like(b), eps=eps)


def without_the_weight(x, w, eps):
    return rmsnorm(x, torch.ones_like(w), eps=eps)


@pytest.mark.parametrize(("style", "fields"), [("llama", {}), ("gpt2", {}), ("llama", {"autocast": "bfloat16"})])
def test_a_block_with_one_wrong_part_is_wrong(case, style, fields):
    _, _, is_right = case(style, pass_="fwd_bwd", **fields)
    right = {"attention": attention, "gelu": gelu, "layernorm": layernorm, "rmsnorm": rmsnorm}
    assert is_right(transformer_block)
    wrong = [{"attention": of_all_keys}, {"attention": of_another_group}]
    wrong += [{"rmsnorm": without_the_weight}] if style == "llama" else [{"layernorm": without_bias}]
    wrong += [{"gelu": gelu_of_erf}] if style == "gpt2" else []
    for change in wrong:
        assert not is_right(_block.composed(**(right | change))), change


def test_queries_and_keys_that_positions_do_not_turn_or_turn_the_other_way_are_wrong(case, monkeypatch):
    _, _, is_right = case("llama", pass_="fwd_bwd")
    back = torch.tensor([1.0, -1.0])[:, None, None]
    rotated = _block.rotated
    for wrong in (lambda x, angles: x, lambda x, angles: rotated(x, angles * back)):
        monkeypatch.setattr(_block, "rotated", wrong)
        assert not is_right(transformer_block)


def test_an_update_that_is_missing_or_of_another_loss_is_wrong(case, expected_of):
    workload, inputs, is_right = case("gpt2", pass_="train_step", lr=0.01)
    assert is_right(transformer_block)
    expected = expected_of(workload, inputs)
    assert not expected.check_tensors(inputs[2:]).correct
    x, target, *params = inputs
    assert not expected.check_tensors(workload.call(transformer_block, (x, -target, *params)).run()).correct


@pytest.mark.parametrize(("style", "optimizer"), [("llama", "adamw"), ("gpt2", "sgd")])
def test_a_step_in_bfloat16_tells_mistakes_that_move_no_parameter(case, style, optimizer):
    sizes = {"batch": 6, "dim": 64, "d": 16, "hidden": 96}
    _, _, is_right = case(style, "bfloat16", pass_="train_step", optimizer=optimizer, **sizes)

    def blind(q, k, v, causal):  # the last query does not see the first key
        return torch.cat([attention(q, k, v, causal=causal)[..., :-1, :], last(q, k, v)], -2)

    def last(q, k, v):
        return attention(q[..., -1:, :], k[..., 1:, :], v[..., 1:, :], causal=False)

    right = {"attention": attention, "gelu": gelu, "layernorm": layernorm, "rmsnorm": rmsnorm}
    assert is_right(transformer_block)
    assert not is_right(lambda *tensors, **options: 1.01 * transformer_block(*tensors, **options))
    assert not is_right(_block.composed(**(right | {"attention": blind})))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_without_eps_is_wrong(case, dtype):
    for style in ("llama", "gpt2"):
        _, _, is_right = case(style, dtype, pass_="fwd")
        assert is_right(transformer_block)
        assert not is_right(lambda *tensors, eps, **options: transformer_block(*tensors, eps=0.0, **options))


def test_decays_in_float32_are_right_and_others_are_not(case, monkeypatch):
    """As in torch's fused kernel on a GPU: 1 - 0.999 then has an error of 1e-5."""
    _, _, is_right = case("gpt2", pass_="train_step", lr=0.01)
    monkeypatch.setitem(ADAMW, "beta2", float(torch.tensor(ADAMW["beta2"])))
    assert is_right(transformer_block)
    monkeypatch.setitem(ADAMW, "beta2", 0.998)
    assert not is_right(transformer_block)


def test_each_update_is_the_same_step_and_starts_anew_after_a_reset(make):
    results = []
    for optimizer in ("adamw", "adamw_fused"):
        workload, inputs = make("transformer_block", dtype="float32", style="llama", pass_="train_step", **SIZES)
        call = type(workload)(**(vars(workload) | {"optimizer": optimizer})).call(transformer_block, inputs)
        for _ in range(2):
            call.restore()
            results.append([output.clone() for output in call.run()])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])
    assert not torch.equal(results[0][0], inputs[3])


def test_scores_in_blocks_are_those_at_once(make, monkeypatch):
    from runner.models import transformer_block as model

    workload, inputs = make("transformer_block", dtype="float32", style="llama", pass_="fwd_bwd", **SIZES)
    whole = workload.outputs_of(*inputs)
    assert not workload.how
    monkeypatch.setattr(model, "SCORES", 1)
    assert workload.how == "; reference in blocks of heads"
    torch.testing.assert_close(workload.outputs_of(*inputs), whole)


def test_flops_and_bytes(make):
    sizes = {"batch": 1, "length": 2, "dim": 3, "heads": 2, "kv_heads": 1, "d": 2, "hidden": 5}
    linear = 8 * 3 + 3 * 4 + 2 * 5 * 3 + 3 * 5  # numbers of q, k and v; output; gate and up; down
    pairs = 2 * 3  # of two heads
    for pass_, flops, numbers in (
        ("fwd", 2 * 2 * linear + 2 * 2 * 2 * pairs, 6 + 6 + linear + 6),
        ("fwd_bwd", 3 * 2 * 2 * linear + 7 * 2 * 2 * pairs, 4 * 6 + 2 * (linear + 6)),
        ("train_step", 3 * 2 * 2 * linear + 7 * 2 * 2 * pairs, 2 * 6 + 6 * (linear + 6)),
    ):
        workload, inputs = make("transformer_block", dtype="float32", style="llama", pass_=pass_, **sizes)
        assert (workload.flops(), workload.bytes_min()) == (flops, 4 * (numbers + 2 * 2))
        assert sum(tensor.numel() for tensor in inputs[-6:]) == linear + 6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_heads": 3}, "heads=8 is not a multiple of kv_heads=3"),
        ({"d": 7}, "d=7: the rotary embedding turns pairs of numbers; give an even d"),
        ({"autocast": "bfloat16", "dtype": "bfloat16"}, "nothing is left to cast; give dtype=float32"),
        (
            {"pass": "train_step", "optimizer": "adamw_fused", "dtype": "bfloat16"},
            "give optimizer=adamw or adamw_triton",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, fields, said):
    values = vars(make("transformer_block", dtype="float32", kv_heads=8)[0]) | fields
    values = {name.rstrip("_"): value for name, value in values.items()}
    with pytest.raises(BadInput, match=said):
        build(option_class("models", "transformer_block"), values, "workload")
