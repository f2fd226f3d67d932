"""linear_int8: every file on views of its operands, groups of any length, and infinities; drawn sizes on a GPU."""

from __future__ import annotations

from importlib import import_module
from random import Random

import pytest
import torch

GROUPS = [0, 32, 128, 50, 3]
VIEWS = {
    "unaligned": lambda x: x[:, 1:],
    "every other row": lambda x: x[::2],
    "every other col": lambda x: x[:, ::2],
    "transposed": lambda x: x.t().contiguous().t(),
    "reversed storage": lambda x: x.flip(0).t().contiguous().t(),
}


@pytest.fixture(params=["naive", "torch", "triton"])
def linear_int8(request, load):
    return load("linear_int8", request.param)


def drawn(m, n, k, group, device, dtype=torch.float32):
    groups = -(-k // group) if group else 1
    x, scale = torch.randn(m, k, device=device).to(dtype), torch.rand(n, groups, device=device).to(dtype)
    return x, torch.randint(-128, 128, (n, k), dtype=torch.int8, device=device), scale


def exact(x, weight, scale, group):
    each = scale.double().repeat_interleave(group or x.shape[1], 1)[:, : x.shape[1]]
    return x.double() @ (weight.double() * each).mT


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize(("m", "group"), [(6, 0), (6, 32), (1, 32)])
def test_any_view_of_an_operand_gives_the_same(linear_int8, device, view, m, group):
    x, weight, scale = drawn(m, 40, 98, group, device)
    x, weight = view(x), view(weight)
    k = x.shape[1]
    scale = drawn(1, weight.shape[0], k, group, device)[2]
    scale = scale.t().contiguous().t()
    right = exact(x, weight, scale, group)
    assert torch.allclose(linear_int8(x, weight, scale, group=group).double(), right, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 130, 200), (20, 65, 129), (70, 3, 33)])
def test_groups_of_any_length_have_their_own_scale(linear_int8, device, m, n, k, group):
    x, weight, scale = drawn(m, n, k, group, device)
    y = linear_int8(x, weight, scale, group=group)
    assert torch.allclose(y.double(), exact(x, weight, scale, group), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 1e36])
def test_infinities_and_nan_are_as_in_torch(linear_int8, device, value):
    x, weight, scale = drawn(3, 20, 64, 0, device)
    weight[:, 5] = weight[:, 5].clamp(1, 2)
    x[1, 5], scale[:] = value, 0.25
    y, right = linear_int8(x, weight, scale, group=0), x @ (weight * scale).mT
    assert torch.equal(y[1].isnan(), right[1].isnan())
    assert torch.allclose(y[::2], right[::2], rtol=1e-4, atol=1e-3)
    assert torch.allclose(y[1], right[1], rtol=1e-4, equal_nan=True)


def test_nothing_to_add_is_zero(linear_int8, device):
    x, weight, scale = drawn(2, 5, 0, 0, device)
    assert linear_int8(x, weight, scale, group=0).tolist() == [[0] * 5] * 2
    assert linear_int8(*drawn(0, 5, 8, 0, device), group=0).shape == (0, 5)


@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize(("m", "group"), [(5, 0), (5, 64), (1, 64)])
def test_the_parts_of_a_sum_are_added_in_triton(load, device, splits, m, group):
    x, weight, scale = drawn(m, 70, 700, group, device)
    y = load("linear_int8", "triton")(x, weight, scale, group=group, SPLIT_K=splits)
    assert torch.allclose(y.double(), exact(x, weight, scale, group), rtol=1e-5, atol=1e-2)


def test_operands_that_do_not_fit_are_refused_in_triton(load, device):
    function = load("linear_int8", "triton")
    x, weight, scale = drawn(2, 6, 64, 32, device)
    for operands, group in (
        ((x, weight, scale), 16),
        ((x, weight, scale), -1),
        ((x[:, :60], weight, scale), 32),
        ((x, weight.short(), scale), 32),
        ((x, weight, scale.half()), 32),
        ((x[0], weight, scale), 32),
    ):
        with pytest.raises(ValueError, match="give"):
            function(*operands, group=group)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_drawn_sizes_match_float64(make, error, dtype):
    function, chance = import_module("runner.kernels.linear_int8.triton").linear_int8, Random(dtype)
    for limit in (3, 16, 40, 64, 200, 1000) * 2:
        m, n, k = chance.randrange(1, limit) | 1, chance.randrange(1, 6000) | 1, chance.randrange(1, 9000) | 1
        group = chance.choice([0, 32, 64, 128, 100])
        workload, inputs = make("linear_int8", dtype=dtype, device="cuda", m=m, n=n, k=k, group=group)
        call = workload.call(function, inputs)
        call.run()
        assert error(workload.reference(*inputs), call.run()) <= 1, (m, n, k, group)  # by the plan of the first call
