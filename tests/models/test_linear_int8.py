"""linear_int8: how the weight is quantized, and a tolerance that allows its roundings and no wrong scale."""

from __future__ import annotations

import random

import pytest
import torch

from runner.kernels.linear_int8 import naive
from runner.models import linear_int8 as module

SIZES = {"m": 5, "n": 40, "k": 300}
DTYPES = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("group", [0, 128, 7])
def test_the_largest_weight_of_each_group_becomes_127(make, group):
    workload, (x, weight, scale, dense) = make("linear_int8", dtype="float32", group=group, **SIZES)
    groups = -(-300 // group) if group else 1
    assert (x.shape, weight.shape, scale.shape, dense.shape) == ((5, 300), (40, 300), (40, groups), (40, 300))
    assert weight.dtype == torch.int8
    for start in range(0, 300, group or 300):
        assert (weight[:, start : start + (group or 300)].abs().amax(-1) == 127).all()
    assert torch.equal(dense, weight * scale.repeat_interleave(group or 300, 1)[:, :300])
    assert workload.options() == {"group": group}


def test_zeros_have_a_scale_that_is_no_zero(make, error):
    workload, inputs = make("linear_int8", dtype="float32", data="zeros", **SIZES)
    _, weight, scale, _ = inputs
    assert not weight.any()
    assert (scale > 0).all()
    assert error(workload.reference(*inputs), [torch.zeros(5, 40)]) == 0


def test_only_an_implementation_that_names_it_gets_the_dense_weight(make):
    workload, inputs = make("linear_int8", dtype="float32", group=32, **SIZES)
    assert workload.call(lambda *given, group: (*given, group), inputs).run()[0][3:] == (32,)
    assert workload.call(lambda x, weight, scale, dense: dense, inputs).run()[0] is inputs[3]


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_order_of_scale_product_and_rounding_is_right(make, error, dtype, group):
    workload, inputs = make("linear_int8", dtype=dtype, group=group, **SIZES)
    x, weight, scale, dense = inputs
    expected = workload.reference(*inputs)
    each = workload._of_each(scale)
    assert error(expected, [x @ dense.mT]) < 1
    assert error(expected, [(x.float() @ (weight * each.float()).mT).to(x.dtype)]) < 1
    if not group:
        assert error(expected, [(x @ weight.to(x.dtype).mT) * scale.mT]) < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_scale_a_missing_feature_and_weights_off_by_one_are_wrong(make, error, dtype):
    workload, inputs = make("linear_int8", dtype=dtype, group=32, **SIZES)
    x, weight, scale, _ = inputs
    expected = workload.reference(*inputs)

    def y(weight, scale, x=x):
        return (x.double() @ (weight.double() * workload._of_each(scale).double()).mT).to(x.dtype)

    assert error(expected, [y(weight, scale)]) < 1
    assert error(expected, [y(weight, scale.roll(1, 1))]) > 2
    assert error(expected, [y(weight, scale.mean(1, keepdim=True).expand_as(scale))]) > 2
    assert error(expected, [y((weight + 1).clamp(max=127), scale)]) > 2
    assert error(expected, [y(weight, scale, x.index_fill(1, torch.tensor([299]), 0))]) > 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 512, 4096, 128), (8, 300, 1000, 0), (64, 64, 512, 64)])
def test_small_errors_that_all_outputs_have_are_wrong(make, error, dtype, sizes):
    """In bfloat16 no single element tells."""
    workload, inputs = make("linear_int8", dtype=dtype, **dict(zip(("m", "n", "k", "group"), sizes, strict=True)))
    x, weight, scale, _ = inputs
    expected, dense = workload.reference(*inputs), weight * workload._of_each(scale.float())
    y, step = x.float() @ dense.mT, x.float().abs().amax(1, keepdim=True) / 127
    for factor in (1.01, 127 / 128):  # the wrong divisor of the scale
        assert error(expected, [(y * factor).to(x.dtype)]) > 1
    assert error(expected, [((x / step).round() * step @ dense.mT).to(x.dtype)]) > 1  # x in int8 too


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_roundings_at_drawn_sizes_are_right(make, error, dtype, seed):
    """Of weights, of the sum before the scale, and of the sums of each part of k."""
    chance = random.Random(seed)
    m, n, k = chance.choice([1, 3, 33]), chance.choice([1, 3, 50]), chance.choice([1, 17, 300])
    sizes = {"m": m, "n": n, "k": k, "group": chance.choice([0, 16])}
    workload, inputs = make("linear_int8", dtype=dtype, data=chance.choice(["normal", "uniform"]), **sizes)
    x, weight, scale, dense = inputs
    expected, total = workload.reference(*inputs), torch.zeros(m, n, dtype=x.dtype)
    for some, part in zip(x.split(-(-k // 4), 1), dense.split(-(-k // 4), 1), strict=True):
        total += some @ part.mT
    assert error(expected, [total]) < 1
    assert error(expected, [naive.linear_int8(x, weight, scale, group=workload.group)]) < 1
    if not workload.group:
        assert error(expected, [(x.float() @ weight.float().mT).to(x.dtype) * scale.mT]) < 1


def test_tf32_is_right_only_if_allowed(make, error):
    for allowed in (True, False):
        workload, inputs = make("linear_int8", dtype="float32", tf32=allowed, **SIZES)
        x, _, _, dense = inputs
        cut = [(each.view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (x, dense)]
        assert (error(workload.reference(*inputs), [cut[0] @ cut[1].mT]) < 1) is allowed


def test_flops_and_bytes(make):
    workload, _ = make("linear_int8", dtype="bfloat16", m=2, n=3, k=10, group=4)
    assert (workload.flops(), workload.bytes_min()) == (120, 2 * (2 * 10 + 2 * 3 + 3 * 3) + 30)
    assert module.LARGEST == 127
