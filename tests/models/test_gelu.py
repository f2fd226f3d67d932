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


@pytest.mark.parametrize(("form", "flops"), [("tanh", 54), ("erf", 30)])
def test_flops_and_bytes(make, form, flops):
    workload, _ = make("gelu", dtype="bfloat16", form=form, rows=2, cols=3)
    assert (workload.flops(), workload.bytes_min()) == (flops, 24)
