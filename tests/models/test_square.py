"""square: a tolerance that accepts one rounding, and rejects zeros, the input and the next narrower type."""

from __future__ import annotations

import pytest
import torch

NARROWER = {"float64": torch.float32, "float32": torch.bfloat16, "float16": torch.bfloat16}


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
@pytest.mark.parametrize("dtype", [*NARROWER, "bfloat16"])
def test_a_square_rounded_once_is_right_and_other_results_are_wrong(make, error, dtype, pass_):
    workload, inputs = make("square", dtype=dtype, rows=31, cols=99, pass_=pass_)
    expected = workload.reference(*inputs)
    right = 2 * inputs[0] * inputs[1] if pass_ == "bwd" else inputs[0] ** 2
    assert error(expected, [right]) <= 1
    for wrong in (torch.zeros_like(right), torch.full_like(right, float(right.mean())), inputs[0]):
        assert error(expected, [wrong]) > 2
    if dtype in NARROWER:
        assert error(expected, [right.to(NARROWER[dtype]).to(right.dtype)]) > 2


@pytest.mark.parametrize(("pass_", "expected"), [("fwd", (15, 60)), ("bwd", (30, 90))])
def test_flops_and_bytes(make, pass_, expected):
    workload, _ = make("square", dtype="bfloat16", rows=3, cols=5, pass_=pass_)
    assert (workload.flops(), workload.bytes_min()) == expected
