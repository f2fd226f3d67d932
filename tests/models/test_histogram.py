"""histogram: exact counts of elements whose bins are beyond doubt."""

from __future__ import annotations

import pytest
import torch


def counted(x, bins, dtype):
    return torch.zeros(bins, dtype=dtype).scatter_add_(0, (x * bins).long(), torch.ones(len(x), dtype=dtype))


@pytest.mark.parametrize("data", ["uniform", "normal", "zeros"])
def test_only_the_counts_are_right(make, error, data):
    workload, (x,) = make("histogram", dtype="float32", data=data, elements=100_000, bins=100)
    expected, right = workload.reference(x), counted(x, 100, torch.int64)
    assert error(expected, [right]) == 0
    off_by_one = right.clone()
    off_by_one[50] += 1
    for wrong in (off_by_one, torch.zeros_like(right), torch.full_like(right, 1000), counted(x, 100, torch.bfloat16)):
        assert error(expected, [wrong]) > 1


def test_the_data_differ_in_how_many_elements_share_a_bin(make):
    def largest(data):
        workload, (x,) = make("histogram", dtype="float32", data=data, elements=100_000, bins=100)
        return workload.reference(x)[0].value.max() / 1000

    assert largest("uniform") < 1.2 < 2 < largest("normal") < 4 < largest("zeros") == 100


@pytest.mark.parametrize("bins", [1, 7, 2**20])
def test_rounding_moves_no_element_into_another_bin(make, bins):
    workload, (x,) = make("histogram", dtype="float32", data="uniform", elements=100_000, bins=bins)
    for place in (x * bins, x / (1 / bins), x.double() * bins):
        assert ((place - place.floor() - 0.5).abs() <= 0.25).all()
    assert workload.reference(x)[0].value.sum() == 100_000


def test_more_bins_than_float32_tells_apart_are_refused(make):
    with pytest.raises(
        ValueError, match=r"^bins: 1048577 is not allowed; give at most 1048576, which float32 tells apart$"
    ):
        make("histogram", dtype="float32", bins=2**20 + 1)


def test_flops_and_bytes(make):
    workload, _ = make("histogram", dtype="float32", elements=100, bins=10)
    assert (workload.flops(), workload.bytes_min(), workload.output_dtype) == (100, 480, "int64")
