"""add: known values, and a tolerance that rejects a sum in the next narrower type."""

from __future__ import annotations

import pytest
import torch

NARROWER = {"float64": torch.float32, "float32": torch.bfloat16, "float16": torch.bfloat16}


@pytest.mark.parametrize("dtype", [*NARROWER, "bfloat16"])
def test_a_sum_rounded_once_is_right_and_one_of_a_narrower_type_wrong(make, error, dtype):
    workload, (a, b) = make("add", dtype=dtype, rows=31, cols=99)
    assert error(workload.reference(a, b), [a + b]) <= 1
    if dtype in NARROWER:
        narrow = a.to(NARROWER[dtype]) + b.to(NARROWER[dtype])
        assert error(workload.reference(a, b), [narrow.to(a.dtype)]) > 2


def test_it_counts_an_operation_and_three_numbers_an_element(make):
    workload, _ = make("add", dtype="bfloat16", rows=3, cols=5)
    assert (workload.flops(), workload.bytes_min()) == (15, 90)
