"""cdist: a tolerance that forgives the cancellation of the expanded square, and nothing else."""

from __future__ import annotations

import pytest
import torch

SIZES = {"n": 65, "m": 33, "p": 2}


def expanded(a, b, product):
    return (a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * product).clamp(min=0).sqrt()


def tf32(x):
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_reference_has_the_known_value(make):
    workload, _ = make("cdist", dtype="float64", d=2, **SIZES)
    (y,) = workload.reference(torch.zeros(1, 2).double(), torch.tensor([[3.0, 4.0], [0.0, 0.0]]).double())
    assert y.value.tolist() == [[5, 0]]


@pytest.mark.parametrize("d", [1, 3, 128, 2048])
@pytest.mark.parametrize("near", [0.0, 1e-3])
def test_both_the_difference_and_the_expansion_are_right_for_near_points(make, error, d, near):
    workload, (a, _) = make("cdist", dtype="float32", d=d, **SIZES)
    b = a[:33] + near
    expected = workload.reference(a, b)
    assert error(expected, [(a[:, None] - b).square().sum(-1).sqrt()]) < 1
    assert error(expected, [expanded(a, b, a @ b.mT)]) < 1


@pytest.mark.parametrize("d", [3, 128, 2048])
def test_tf32_is_right_only_if_allowed(make, error, d):
    for allowed in (True, False):
        workload, (a, b) = make("cdist", dtype="float32", tf32=allowed, d=d, **SIZES)
        assert (error(workload.reference(a, b), [expanded(a, b, tf32(a) @ tf32(b).mT)]) < 1) is allowed


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_leaving_out_the_root_or_a_coordinate_is_wrong(make, error, dtype):
    workload, (a, b) = make("cdist", dtype=dtype, d=128, **SIZES)
    expected = workload.reference(a, b)
    right = torch.cdist(a.double(), b.double())
    assert error(expected, [right.to(a.dtype)]) < 1
    assert error(expected, [right.square().to(a.dtype)]) > 2
    assert error(expected, [torch.cdist(a[:, 1:].double(), b[:, 1:].double()).to(a.dtype)]) > 1


def test_zeros_are_at_distance_zero(make, error):
    workload, (a, b) = make("cdist", dtype="float32", data="zeros", d=8, **SIZES)
    assert error(workload.reference(a, b), [torch.zeros(65, 33)]) == 0
    assert error(workload.reference(a, b), [torch.full((65, 33), 1e-10)]) > 1


def test_flops_and_bytes(make):
    workload, _ = make("cdist", dtype="float32", n=2, m=3, d=5, p=2)
    assert (workload.flops(), workload.bytes_min()) == (60, 4 * (10 + 15 + 6))
