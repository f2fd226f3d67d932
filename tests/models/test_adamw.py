"""adamw: the step of torch's own optimizer, and a tolerance that rejects a step which leaves a part of it out."""

from __future__ import annotations

import dataclasses

import pytest
import torch

FIELDS = {"layers": 1, "dim": 24, "kv": 8, "hidden": 40, "vocab": 30, "step": 7, "lr": 0.01, "weight_decay": 0.1}
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def by_torch(inputs, step, lr, beta1, beta2, eps, weight_decay):
    """Return p, m and v after the step, computed by ``torch.optim.AdamW`` in float64."""
    count, results = len(inputs) // 4, []
    for place in range(count):
        p, g, m, v = (x.to(torch.float64, copy=True) for x in inputs[place::count])
        optimizer = torch.optim.AdamW([p], lr, (beta1, beta2), eps, weight_decay, foreach=False)
        p.grad = g
        optimizer.state[p] = {"step": torch.tensor(step - 1.0), "exp_avg": m, "exp_avg_sq": v}
        optimizer.step()
        results.append((p, m, v))
    return [result[at] for at in range(3) for result in results]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("moments", ["same", "float32"])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_step_is_that_of_torch(make, error, dtype, moments, step):
    workload, inputs = make("adamw", dtype=dtype, moments=moments, **(FIELDS | {"step": step}))
    expected = workload.reference(*inputs)
    stored = [getattr(torch, one.dtype) for one in expected]
    right = by_torch(inputs, **workload.options())
    assert error(expected, [y.to(kind) for y, kind in zip(right, stored, strict=True)]) < 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "wrong",
    [{"step": 8}, {"lr": 0.0}, {"beta1": 0.89}, {"beta2": 0.99}, {"weight_decay": 0.0}, {"lr": 0.0101}, {"eps": 0.0}],
    ids=str,
)
def test_another_step_is_wrong(make, error, dtype, wrong):
    workload, inputs = make("adamw", dtype=dtype, moments="float32", **FIELDS)
    if dtype.endswith("16") and "weight_decay" in wrong:
        pytest.skip("torch rounds p (1 - lr weight_decay) to a parameter of this type, which is p")
    outputs = by_torch(inputs, **(workload.options() | wrong))
    expected = workload.reference(*inputs)
    assert error(expected, [y.to(getattr(torch, one.dtype)) for y, one in zip(outputs, expected, strict=True)]) > 1


def test_no_second_moment_of_float16_is_0(make):
    _, inputs = make("adamw", dtype="float16", **(FIELDS | {"vocab": 20_000}))
    assert all(v.min() > 0 for v in inputs[3 * len(inputs) // 4 :]), "a step in float16 divides by its root"


def test_the_outputs_are_the_inputs_which_a_gradient_is_not_among(make):
    workload, inputs = make("adamw", dtype="bfloat16", moments="float32", **FIELDS)
    count = len(workload.shapes())
    outputs = workload.call(lambda *tensors: None, inputs).run()
    assert all(one is other for one, other in zip(outputs, inputs[:count] + inputs[2 * count :], strict=True))
    assert [one.dtype for one in workload.reference(*inputs)] == ["bfloat16"] * count + ["float32"] * 2 * count


def test_flops_and_bytes(make):
    workload, inputs = make("adamw", dtype="bfloat16", moments="float32", **FIELDS)
    elements = sum(x.numel() for x in inputs) // 4
    assert workload.flops() == 14 * elements
    assert workload.bytes_min() == (3 * 2 + 4 * 4) * elements


def test_a_decay_of_1_is_refused(make):
    workload, _ = make("adamw", dtype="float32", **FIELDS)
    with pytest.raises(ValueError, match=r"beta2: 1.0 is not allowed; give a number below 1"):
        dataclasses.replace(workload, beta2=1.0)
