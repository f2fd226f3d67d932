"""conv2d and conv_bn_relu_pool: what their tolerance rejects, what they refuse, and what their definitions cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from runner.subject.tolerance import Judge

SIZES = {"batch": 3, "channels": 6, "height": 11, "width": 8, "filters": 4, "kernel": 3, "padding": 1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_flipped_filter_or_another_place_of_it_is_wrong(make, dtype):
    workload, inputs = make("conv2d", dtype=dtype, groups=2, **SIZES)
    judge = Judge(workload.outputs_of, inputs, quick=True)
    x, w = inputs
    assert judge.check((F.conv2d(x, w, padding=1, groups=2),)).correct
    assert not judge.check((F.conv2d(x, w.flip(-1), padding=1, groups=2),)).correct
    assert not judge.check((F.conv2d(F.pad(x, (2, 0, 1, 1)), w, groups=2),)).correct
    assert not judge.check((F.conv2d(x, w, padding=1, groups=2) * 1.01,)).correct


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_block_with_another_variance_or_that_pools_before_it_scales_is_wrong(make, dtype):
    workload, (x, w, gamma, beta) = make("conv_bn_relu_pool", dtype=dtype, mode="training", **SIZES)
    judge = Judge(workload.outputs_of, (x, w, gamma, beta), quick=True)
    assert judge.check((workload.formula(x, w, gamma, beta),)).correct
    z = F.conv2d(x, w, padding=1).float()
    scaled = {
        n: (z - z.mean((0, 2, 3), keepdim=True)) / (z.var((0, 2, 3), correction=n, keepdim=True) + workload.eps).sqrt()
        for n in (0, 1)
    }
    right, wrong = (F.relu(scaled[n] * gamma[:, None, None] + beta[:, None, None]).to(x.dtype) for n in (0, 1))
    assert judge.check((F.max_pool2d(right, 2),)).correct
    assert judge.check((F.max_pool2d(wrong, 2),)).correct == (dtype == "bfloat16")  # by 1 in 528
    before = F.max_pool2d(scaled[0], 2) * gamma[:, None, None] + beta[:, None, None]
    assert (gamma < 0).any()
    assert not judge.check((F.relu(before).to(x.dtype),)).correct


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_block_without_eps_is_wrong(make, dtype, mode):
    workload, inputs = make("conv_bn_relu_pool", dtype=dtype, mode=mode, **SIZES)
    judge = Judge(workload.outputs_of, inputs, quick=True)
    assert judge.check((workload.formula(*inputs),)).correct
    assert not judge.check((replace(workload, eps=1e-30).formula(*inputs),)).correct


@pytest.mark.parametrize("op", ["conv2d", "conv_bn_relu_pool"])
def test_channels_last_is_another_place_for_the_same_numbers(make, op):
    _, plain = make(op, dtype="float32", **SIZES)
    _, last = make(op, dtype="float32", layout="channels_last", **SIZES)
    assert all(map(torch.equal, plain, last))
    assert [x.is_contiguous(memory_format=torch.channels_last) for x in last[:2]] == [True, True]
    assert last[0].stride(1) == last[1].stride(1) == 1


@pytest.mark.parametrize(
    ("op", "fields", "message"),
    [
        ("conv2d", {"groups": 4}, "channels=6 is not a multiple of groups=4"),
        ("conv2d", {"groups": 3}, "filters=4 is not a multiple of groups=3"),
        ("conv2d", {"dilation": 5}, "kernel=3 does not fit into 11 x 8 pixels with padding=1"),
        ("conv_bn_relu_pool", {"pool": 9}, "pool=9 is larger than the 11 x 8 numbers"),
        ("conv_bn_relu_pool", {"pass_": "bwd"}, "inference has no backward; give mode=training"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, op, fields, message):
    with pytest.raises(ValueError, match=message):
        make(op, dtype="float32", **SIZES, **fields)


@pytest.mark.parametrize(
    ("op", "fields", "flops", "numbers"),
    [
        ("conv2d", {"stride": 2, "groups": 2}, 2 * 27 * 3 * 4 * 24, 1584 + 108 + 288),
        ("conv2d", {"pass_": "bwd"}, 2 * 2 * 54 * 3 * 4 * 88, 2 * (1584 + 216) + 1056),
        ("conv2d", {"pass_": "fwd_bwd"}, 3 * 2 * 54 * 3 * 4 * 88, 2 * (1584 + 216 + 1056)),
        ("conv_bn_relu_pool", {}, 2 * 54 * 3 * 4 * 88, 1584 + 216 + 16 + 240),
        ("conv_bn_relu_pool", {"mode": "training", "pass_": "fwd_bwd"}, 3 * 2 * 54 * 3 * 4 * 88, 2 * (1808 + 240)),
    ],
)
def test_flops_and_bytes(make, op, fields, flops, numbers):
    workload, inputs = make(op, dtype="bfloat16", **SIZES, **fields)
    assert (workload.flops(), workload.bytes_min()) == (flops, 2 * numbers)
    if fields.get("pass_") != "bwd":  # which reads no y, and writes none
        assert sum(tensor.numel() for tensor in (*inputs, *workload.outputs_of(*inputs))) == numbers
