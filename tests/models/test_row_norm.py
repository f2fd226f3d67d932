"""layernorm and rmsnorm: what their automatic tolerance rejects, and what their definitions cost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from runner.subject.tolerance import Judge


def layernorm(x, w, b, eps, ddof=0):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (x.shape[-1] - ddof)
    return (centred / (variance + eps).sqrt() * w + b).to(x.dtype)


@pytest.fixture
def inputs_and_judge(make):
    def build(op, dtype, pass_="fwd", change=lambda x: x):
        workload, (x, *others) = make(op, dtype=dtype, rows=40, cols=300, pass_=pass_)
        inputs = change(x), *others
        return workload, inputs, Judge(workload.outputs_of, inputs, quick=True)

    return build


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_another_variance_or_a_norm_without_the_mean_is_wrong(inputs_and_judge, dtype):
    workload, (x, w, b), judge = inputs_and_judge("layernorm", dtype)
    assert judge.check((layernorm(x, w, b, workload.eps),)).correct
    assert not judge.check((F.rms_norm(x, (300,), w, workload.eps) + b,)).correct
    assert not judge.check((layernorm(x, w, b, workload.eps, ddof=1),)).correct  # by 1 in 600


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_first_row_shows_whether_eps_is_there(inputs_and_judge, op, dtype):
    workload, inputs, judge = inputs_and_judge(op, dtype)
    assert judge.check((workload.formula(*inputs),)).correct
    without = F.layer_norm if op == "layernorm" else F.rms_norm
    assert not judge.check((without(inputs[0], (300,), *inputs[1:], eps=0.0),)).correct


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_the_weight_that_lack_a_row_or_are_summed_in_16_bits_are_wrong(inputs_and_judge, op, dtype):
    workload, inputs, judge = inputs_and_judge(op, dtype, pass_="fwd_bwd")
    y, dx, dw, *db = outputs = workload.outputs_of(*inputs)
    assert judge.check(outputs).correct
    x, w, *b, dy = inputs
    terms = dy * workload.formula(x, torch.ones_like(w), *map(torch.zeros_like, b))
    assert not judge.check((y, dx, dw - terms[0], *db)).correct
    total = torch.zeros_like(dw, dtype=torch.bfloat16)
    for term in terms:
        total = total + term.bfloat16()
    if dtype == "float32":  # in bfloat16 torch itself does little better on a CPU
        assert not judge.check((y, dx, total.float(), *db)).correct


@pytest.mark.parametrize(
    ("op", "pass_", "flops", "numbers"),
    [
        ("layernorm", "fwd", 42, 18),
        ("layernorm", "bwd", 78, 27),
        ("layernorm", "fwd_bwd", 120, 36),
        ("rmsnorm", "fwd", 24, 15),
        ("rmsnorm", "bwd", 54, 24),
        ("rmsnorm", "fwd_bwd", 78, 30),
    ],
)
def test_flops_and_bytes(make, op, pass_, flops, numbers):
    workload, inputs = make(op, dtype="bfloat16", rows=2, cols=3, pass_=pass_)
    assert (workload.flops(), workload.bytes_min()) == (flops, 2 * numbers)
    moved = sum(tensor.numel() for tensor in (*inputs, *workload.outputs_of(*inputs)))
    assert moved - (3 if (op, pass_) == ("layernorm", "bwd") else 0) == numbers  # a backward reads no bias
