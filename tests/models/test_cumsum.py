"""cumsum: a tolerance for sums in any order, which a narrower sum and anything else exceeds."""

from __future__ import annotations

import pytest
import torch

DTYPES = ["float64", "float32", "float16", "bfloat16"]
NARROWER = {"float64": torch.float32, "float32": torch.bfloat16, "float16": torch.bfloat16, "bfloat16": torch.bfloat16}


def one_by_one(x):
    total, sums = torch.zeros_like(x[:, 0]), []
    for column in x.unbind(-1):
        total = total + column
        sums.append(total)
    return torch.stack(sums, -1)


def doubling(x):
    distance = 1
    while distance < x.shape[1]:
        x = torch.cat((x[:, :distance], x[:, distance:] + x[:, :-distance]), dim=1)
        distance *= 2
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 2, 900])
def test_sums_in_any_order_are_right(make, error, dtype, cols):
    workload, (x,) = make("cumsum", dtype=dtype, rows=9, cols=cols)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    for order in (one_by_one, doubling):
        for offset in (0, 1, 10):  # with an offset, all sums grow; sums of zeros are no random walk
            expected = workload.reference((x + offset).to(x.dtype))
            assert error(expected, [order((x + offset).to(x.dtype).to(wide.dtype)).to(x.dtype)]) < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_anything_else_is_wrong(make, error, dtype):
    workload, (x,) = make("cumsum", dtype=dtype, rows=9, cols=300)
    expected, y = workload.reference(x), x.double().cumsum(-1)
    narrow = one_by_one(x.to(NARROWER[dtype])).to(x.dtype)
    shifted = torch.cat((torch.zeros(9, 1), y[:, :-1]), -1)  # without the element itself
    for wrong in (narrow, torch.zeros_like(x), torch.full_like(x, float(y.mean())), x, shifted, y.flip(-1)):
        assert error(expected, [wrong]) > 2


def test_flops_and_bytes(make):
    workload, _ = make("cumsum", dtype="bfloat16", rows=3, cols=5)
    assert (workload.flops(), workload.bytes_min()) == (12, 60)
