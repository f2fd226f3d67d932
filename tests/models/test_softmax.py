"""softmax: its properties, and a tolerance that rejects arithmetic that is too narrow and exponents that overflow."""

from __future__ import annotations

import pytest
import torch

DTYPES = ["float64", "float32", "float16", "bfloat16"]


def test_reference_sums_to_1_and_ignores_a_shift(make):
    workload, (x,) = make("softmax", dtype="float64", rows=5, cols=1001)
    (y,), (shifted,) = workload.reference(x), workload.reference(x + 100)
    assert torch.allclose(y.value.sum(-1), torch.ones(5, dtype=torch.float64), rtol=1e-14)
    assert torch.allclose(y.value, shifted.value, rtol=1e-12)


def test_reference_has_the_known_value(make):
    workload, _ = make("softmax", dtype="float64", rows=1, cols=2)
    (y,) = workload.reference(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert float(y.value[0, 1]) == pytest.approx(0.7310585786300049, rel=1e-15)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cols", [127, 5000])
def test_a_softmax_in_16_bits_is_wrong(make, error, dtype, cols):
    workload, (x,) = make("softmax", dtype=dtype, rows=7, cols=cols)
    weights = (x - x.amax(-1, keepdim=True)).exp()
    assert error(workload.reference(x), [weights / weights.sum(-1, keepdim=True)]) > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_float32_result_of_16_bit_precision_is_wrong(make, error, dtype):
    workload, (x,) = make("softmax", dtype="float32", rows=7, cols=1001)
    assert error(workload.reference(x), [x.softmax(-1).to(getattr(torch, dtype))]) > 2


def test_leaving_out_the_max_is_wrong_where_exp_overflows(make, error):
    workload, (x,) = make("softmax", dtype="float32", rows=7, cols=1001)
    x = x * 1e4
    weights = x.exp()
    assert error(workload.reference(x), [x.softmax(-1)]) < 1
    assert error(workload.reference(x), [weights / weights.sum(-1, keepdim=True)]) == float("inf")


def test_padding_with_0_is_wrong_in_float32(make, error):
    workload, (x,) = make("softmax", dtype="float32", rows=7, cols=127)
    padded = torch.nn.functional.pad(x, (0, 1)).softmax(-1)[:, :-1]
    assert error(workload.reference(x), [padded]) > 2


def test_minus_infinity_is_a_weight_of_zero(make, error):
    workload, (x,) = make("softmax", dtype="float32", rows=7, cols=127)
    x[:, ::3] = -torch.inf
    assert error(workload.reference(x), [x.softmax(-1)]) < 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 127, 5000])
def test_backward_is_right_as_torch_does_it(make, error, dtype, cols):
    workload, inputs = make("softmax", dtype=dtype, rows=7, cols=cols, pass_="bwd")
    assert error(workload.reference(*inputs), workload.call(lambda x: x.softmax(-1), inputs).run()) < 1


def test_the_reference_of_backward_agrees_with_finite_differences(make):
    workload, (x, dy) = make("softmax", dtype="float64", rows=3, cols=11, pass_="bwd")
    (dx,) = workload.reference(x, dy)
    moved = torch.zeros_like(x)
    moved[:, 4] = 1e-6
    along = (((x + moved).softmax(-1) - (x - moved).softmax(-1)) * dy).sum(-1) / 2e-6
    assert dx.name == "dx"
    assert torch.allclose(dx.value[:, 4], along, rtol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [127, 5000])
def test_a_backward_without_the_sum_is_wrong(make, error, dtype, cols):
    workload, (x, dy) = make("softmax", dtype=dtype, rows=7, cols=cols, pass_="bwd")
    assert error(workload.reference(x, dy), [(x.double().softmax(-1) * dy).to(x.dtype)]) > 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_backward_whose_sum_is_kept_in_16_bits_is_wrong(make, error, dtype):
    workload, (x, dy) = make("softmax", dtype=dtype, rows=7, cols=5000, pass_="bwd")
    y, terms = x.softmax(-1), (x.softmax(-1) * (dy + 1))
    total = torch.zeros_like(x[:, 0])
    for column in terms.unbind(-1):
        total = total + column  # stops growing
    assert error(workload.reference(x, dy + 1), [y * (dy + 1 - total[:, None])]) > 1


@pytest.mark.parametrize(("pass_", "expected"), [("fwd", (30, 48)), ("bwd", (24, 72))])
def test_flops_and_bytes(make, pass_, expected):
    workload, _ = make("softmax", dtype="float32", rows=2, cols=3, pass_=pass_)
    assert (workload.flops(), workload.bytes_min()) == expected
