"""cross_entropy: its properties, and a tolerance that rejects narrow sums, exponents that overflow, other targets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from runner.models import cross_entropy as module

DTYPES = ["float64", "float32", "float16", "bfloat16"]


def loss_of(x, target):
    return F.cross_entropy(x, target, reduction="none")


def test_the_reference_of_uniform_logits_is_known(make):
    workload, (_, target, dloss) = make("cross_entropy", dtype="float64", rows=3, vocab=8, pass_="fwd_bwd")
    loss, dx = workload.reference(torch.full((3, 8), 5.0, dtype=torch.float64), target, dloss)
    assert (loss.name, dx.name) == ("loss", "dx")
    assert torch.allclose(loss.value, torch.tensor(8.0, dtype=torch.float64).log())
    assert torch.allclose(dx.value, (1 / 8 - F.one_hot(target, 8)) * dloss[:, None])


def test_targets_are_at_both_ends_and_in_between(make):
    _, (_, target) = make("cross_entropy", dtype="bfloat16", rows=200, vocab=1000)
    assert (int(target[0]), int(target[-1])) == (999, 0)
    assert ((target >= 0) & (target < 1000)).all()
    assert target.unique().numel() > 60  # as many as bfloat16 tells apart


def test_rows_are_computed_some_at_a_time_and_give_the_same(make, monkeypatch):
    workload, inputs = make("cross_entropy", dtype="float32", rows=7, vocab=50, pass_="fwd_bwd")
    whole = workload.reference(*inputs)
    monkeypatch.setattr(module, "TOGETHER", 150)
    for one, other in zip(whole, workload.reference(*inputs), strict=True):
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.atol, other.atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 127, 5000])
@pytest.mark.parametrize("scale", [1, 1e4])
def test_it_is_right_as_torch_does_it(make, error, dtype, vocab, scale):
    workload, (x, *others) = make("cross_entropy", dtype=dtype, rows=7, vocab=vocab, pass_="fwd_bwd")
    inputs = x * scale, *others
    assert error(workload.reference(*inputs), workload.call(loss_of, inputs).run()) <= 1


class InForward(torch.autograd.Function):
    """Cross entropy that stores its gradient in the forward, in the dtype of x, as Liger does."""

    @staticmethod
    def forward(ctx, x, target):
        loss = loss_of(x.float(), target)
        y = x.float().softmax(-1)
        ctx.save_for_backward((y - F.one_hot(target, x.shape[1])).to(x.dtype))
        return loss.to(x.dtype)

    @staticmethod
    def backward(ctx, dloss):
        return ctx.saved_tensors[0] * dloss[:, None], None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("vocab", [2, 1000])
def test_a_gradient_that_is_stored_in_the_forward_is_right(make, error, dtype, vocab):
    workload, inputs = make("cross_entropy", dtype=dtype, rows=300, vocab=vocab, pass_="fwd_bwd")
    assert error(workload.reference(*inputs), workload.call(InForward.apply, inputs).run()) <= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("vocab", [2, 3])
def test_few_classes_are_right_in_16_bits(make, error, dtype, vocab):
    workload, (x, *others) = make("cross_entropy", dtype=dtype, rows=300, vocab=vocab, pass_="fwd_bwd")
    inputs = x * 2, *others  # for a sum of exponents near 1, which torch rounds
    assert error(workload.reference(*inputs), workload.call(loss_of, inputs).run()) <= 1


def test_leaving_out_the_max_is_wrong_where_exp_overflows(make, error):
    workload, (x, target) = make("cross_entropy", dtype="float32", rows=7, vocab=1001)
    x = x * 1e4
    own = x.gather(-1, target[:, None])[:, 0]
    assert error(workload.reference(x, target), [x.exp().sum(-1).log() - own]) > 1e300


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_sum_that_is_kept_in_16_bits_is_wrong(make, error, dtype):
    workload, (x, target) = make("cross_entropy", dtype=dtype, rows=7, vocab=30_000)
    total = torch.zeros_like(x[:, 0])
    for column in (x - x.amax(-1, keepdim=True)).exp().unbind(-1):
        total = total + column  # stops growing
    loss = total.log() + x.amax(-1) - x.gather(-1, target[:, None])[:, 0]
    assert error(workload.reference(x, target), [loss]) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_softmax_that_is_too_large_throughout_is_wrong(make, error, dtype):
    """In bfloat16 no single element tells, since torch's own y may be so in one."""
    workload, (x, target, dloss) = make("cross_entropy", dtype=dtype, rows=64, vocab=30_000, pass_="bwd")
    y, expected = x.double().softmax(-1), workload.expected_outputs((x, target, dloss))
    by_torch = workload.call(loss_of, (x, target, dloss)).run()
    assert error(workload.reference(x, target, dloss), by_torch) < 1
    result = expected.check([((1.05 * y - F.one_hot(target, 30_000)) * dloss[:, None]).to(x.dtype)])
    assert not result.correct
    assert dtype != "bfloat16" or "% off in common, and " in result.reason


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_another_target_and_a_gradient_without_it_are_wrong(make, error, dtype):
    workload, (x, target, dloss) = make("cross_entropy", dtype=dtype, rows=7, vocab=127, pass_="fwd_bwd")
    expected = workload.reference(x, target, dloss)
    loss, _ = workload.call(loss_of, (x, target, dloss)).run()
    shifted = workload.call(loss_of, (x, (target + 1) % 127, dloss)).run()
    assert error(expected[:1], shifted[:1]) > 5
    assert error(expected[1:], shifted[1:]) > 100
    assert error(expected, [loss, (x.double().softmax(-1) * dloss[:, None]).to(x.dtype)]) > 100
    padded = (F.pad(x, (0, 1)).double().softmax(-1)[:, :-1] - F.one_hot(target, 127)) * dloss[:, None]
    assert (error(expected, [loss, padded.to(x.dtype)]) > 1) == (dtype != "bfloat16")  # 1/128 of y is 1/2 unit


@pytest.mark.parametrize(("pass_", "expected"), [("fwd", (24, 48)), ("bwd", (24, 72)), ("fwd_bwd", (48, 80))])
def test_flops_and_bytes(make, pass_, expected):
    workload, _ = make("cross_entropy", dtype="float32", rows=2, vocab=3, pass_=pass_)
    assert (workload.flops(), workload.bytes_min()) == expected
