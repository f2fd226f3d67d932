"""gelu: known values, and a tolerance that tells the two forms apart in every dtype."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

DTYPES = ["float64", "float32", "float16", "bfloat16"]
SIZES = {"rows": 101, "cols": 99}
OTHER = {"tanh": "none", "erf": "tanh"}  # PyTorch's word for the form that was not asked for


@pytest.mark.parametrize(("form", "at_1"), [("tanh", 0.841191990608), ("erf", 0.841344746069)])
def test_reference_has_the_known_values(make, form, at_1):
    workload, _ = make("gelu", dtype="float64", form=form, **SIZES)
    (y,) = workload.reference(torch.tensor([1.0, 0.0, -1.0, 40.0, -40.0], dtype=torch.float64))
    want = [at_1, 0.0, at_1 - 1, 40.0, 0.0]
    assert torch.allclose(y.value, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_reference_keeps_its_digits_in_the_left_tail(make):
    workload, _ = make("gelu", dtype="float64", form="erf", **SIZES)
    (y,) = workload.reference(torch.tensor([-8.0], dtype=torch.float64))
    assert float(y.value) == pytest.approx(-8 * math.erfc(8 / math.sqrt(2)) / 2, rel=1e-13)


def test_inputs_reach_both_tails(make):
    _, (x,) = make("gelu", dtype="float32", form="erf", **SIZES)
    assert x.shape == (101, 99)
    assert x.min() < -8
    assert x.max() > 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_the_other_form_is_wrong(make, error, dtype, form):
    workload, (x,) = make("gelu", dtype=dtype, form=form, **SIZES)
    assert error(workload.reference(x), [F.gelu(x, approximate=OTHER[form])]) > 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_arithmetic_in_16_bits_is_wrong(make, error, dtype, form):
    workload, (x,) = make("gelu", dtype=dtype, form=form, **SIZES)
    inner = torch.erf(x / 2**0.5) if form == "erf" else torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))
    assert error(workload.reference(x), [0.5 * x * (1 + inner)]) > 2


def test_tanh_at_the_accuracy_of_tanh_approx_is_wrong_in_float32(make, error):
    workload, (x,) = make("gelu", dtype="float32", form="tanh", **SIZES)
    tanh = torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)) * (1 - 2**-11)
    assert error(workload.reference(x), [0.5 * x * (1 + tanh)]) > 2


def test_zeros_ask_for_exactly_zero(make, error):
    workload, (x,) = make("gelu", dtype="float32", form="tanh", data="zeros", **SIZES)
    assert error(workload.reference(x), [x]) == 0
    assert error(workload.reference(x), [x + 1e-30]) > 1


def gelu(x, *, form):
    return F.gelu(x, approximate="tanh" if form == "tanh" else "none")


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_the_reference_of_backward_agrees_with_finite_differences(make, form):
    workload, _ = make("gelu", dtype="float64", form=form, pass_="bwd", **SIZES)
    forward, _ = make("gelu", dtype="float64", form=form, **SIZES)
    x, dy = torch.linspace(-9, 9, 1001, dtype=torch.float64), torch.randn(1001, dtype=torch.float64)
    after, before = (forward.reference(x + step)[0].value for step in (1e-5, -1e-5))
    (dx,) = workload.reference(x, dy)
    assert dx.name == "dx"
    assert torch.allclose(dx.value, dy * (after - before) / 2e-5, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_backward_is_right_as_torch_does_it_and_wrong_in_the_other_form(make, error, dtype, form):
    workload, inputs = make("gelu", dtype=dtype, form=form, pass_="bwd", **SIZES)
    expected = workload.reference(*inputs)
    assert error(expected, workload.call(gelu, inputs).run()) < 1
    other = workload.call(lambda x, form: F.gelu(x, approximate=OTHER[form]), inputs)
    assert error(expected, other.run()) > 2


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_a_backward_without_its_second_term_is_wrong(make, error, form):
    workload, (x, dy) = make("gelu", dtype="bfloat16", form=form, pass_="bwd", **SIZES)
    phi = (x.double() / 2**0.5).erf() / 2 + 0.5
    assert error(workload.reference(x, dy), [(dy * phi).bfloat16()]) > 2


def test_backward_at_the_accuracy_of_tanh_approx_is_wrong_in_float32(make, error):
    workload, (x, dy) = make("gelu", dtype="float32", form="tanh", pass_="bwd", **SIZES)
    tanh = torch.tanh(0.7978845608 * (x + 0.044715 * x**3)) * (1 - 2**-11)
    slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * 0.7978845608 * (1 + 0.134145 * x * x)
    assert error(workload.reference(x, dy), [dy * slope]) > 2


@pytest.mark.parametrize(("form", "pass_", "flops"), [("tanh", "fwd", 54), ("erf", "fwd", 30), ("tanh", "bwd", 114)])
def test_flops_and_bytes(make, form, pass_, flops):
    workload, _ = make("gelu", dtype="bfloat16", form=form, rows=2, cols=3, pass_=pass_)
    assert (workload.flops(), workload.bytes_min()) == (flops, 24 if pass_ == "fwd" else 36)
