"""Sums over ranks: any order of roundings is right, and a factor that all results have in common is not."""

from __future__ import annotations

import pytest
import torch

from runner.models.all_reduce import AllReduce


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_sums_that_are_rounded_at_each_rank_are_right_and_1_percent_more_is_wrong(error, dtype, ranks):
    kind = getattr(torch, dtype)
    tensors = [torch.randn(4096).to(kind) for _ in range(ranks)]
    fields = {"dtype": dtype, "tf32": False, "data": "normal", "rank": 0, "world_size": ranks, "ranks": ranks}
    workload = AllReduce(**fields, bytes=4096 * kind.itemsize)
    expected = workload.summed([tensor.double() for tensor in tensors])
    total, pairs = tensors[0], [first + second for first, second in zip(tensors[::2], tensors[1::2], strict=True)]
    for tensor in tensors[1:]:
        total = total + tensor
    exact = torch.stack(tensors).double().sum(0)
    for y in (total, torch.stack(pairs).sum(0), exact.to(kind)):
        assert error([expected], [y]) < 1
    assert error([expected], [(exact * 1.01).to(kind)]) > 1
    assert error([expected], [(exact - tensors[-1]).to(kind)]) > 1
