"""Outputs that a call does not write."""

from __future__ import annotations

import pytest
import torch

from runner.subject.path import checked, first_calls
from runner.subject.tolerance import Judge
from runner.timing.arguments import Inputs
from runner.timing.call import Call


def reference(x, rows):
    y = torch.zeros_like(x)
    y[:rows] = 2 * x[:rows]
    return y


def by_empty(x, rows):
    y = torch.empty_like(x)
    y[:rows] = 2 * x[:rows]
    return y


def by_new(x, rows):
    kept = torch.cat([2 * x[:rows], x.new_zeros(len(x) - rows, *x.shape[1:])])
    y = x.new_empty(x.shape)
    y[:rows] = kept[:rows]
    return y


def by_strided(x, rows):
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    torch.mul(x[:rows], 2, out=y[:rows])
    return y


def right(x, rows):
    y = torch.empty_like(x)
    y[:rows], y[rows:] = 2 * x[:rows], 0
    return y


def also_right(x, rows):
    y = torch.empty_like(x)
    torch.mul(y, 0, out=y).nan_to_num_(0.0)
    return y.index_copy_(0, torch.arange(rows, device=x.device), 2 * x[:rows])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.complex64]
)
@pytest.mark.parametrize("shape", [(100, 32), (2000, 8)])
def test_rows_that_are_not_written_are_wrong_although_they_must_be_zero(shape, dtype, device):
    x = (1 + torch.rand(shape, device=device)).to(dtype)
    args = x, shape[0] - 1
    judge = Judge(reference, args, quick=True)
    for function in (by_empty, by_new, by_strided, right, also_right):
        inputs = Inputs(args)
        inputs.copy()
        call, _ = first_calls(Call(lambda function=function: function(*args)), inputs, device, peak=False)
        _, columns, wrong = checked(call, judge, lambda: judge, inputs)
        assert (columns["correct"], bool(wrong)) == ((True, False) if "right" in function.__name__ else (False, True))
