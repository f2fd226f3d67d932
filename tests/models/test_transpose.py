"""transpose: an exact result, which nothing but the transpose is."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_only_the_transpose_is_right(make, error, dtype):
    workload, (x,) = make("transpose", dtype=dtype, rows=31, cols=31)
    expected = workload.reference(x)
    assert error(expected, [x.t()]) == 0
    moved = x.t().clone()
    moved[30, 30] = moved[29, 30]
    narrower = x.to({"float64": torch.float32, "float16": torch.bfloat16}.get(dtype, torch.float8_e4m3fn)).to(x.dtype)
    for wrong in (x, moved, narrower.t(), torch.zeros_like(x), torch.full_like(x, torch.nan)):
        assert error(expected, [wrong]) > 1


def test_it_counts_no_operation_and_two_numbers_an_element(make):
    workload, _ = make("transpose", dtype="bfloat16", rows=3, cols=5)
    assert (workload.flops(), workload.bytes_min()) == (0, 60)
