"""nearest: every file on views, ties, NaN and points that are close; drawn sizes on a GPU."""

from __future__ import annotations

from importlib import import_module
from random import Random

import pytest
import torch

from .layouts import LAYOUTS


@pytest.fixture(params=["naive", "torch", "triton", "identity"])
def nearest(request, load):
    if request.param == "identity":
        from runner.kernels.nearest.identity import nearest

        return nearest
    return load("nearest", request.param)


def distances(a, b):
    return (a.double()[:, None] - b.double()).square().sum(-1)


@pytest.mark.parametrize("view", LAYOUTS.values(), ids=LAYOUTS)
def test_any_view_gives_what_its_copy_gives(nearest, device, view):
    a, b = view(torch.randn(12, 34, device=device)), view(torch.randn(50, 34, device=device))
    y = nearest(a, b)
    assert y.dtype == torch.int64
    assert torch.equal(y, distances(a, b).argmin(-1))


@pytest.mark.parametrize("m", [300, 7])
def test_the_first_of_equal_centres_is_chosen(nearest, device, m):
    b = torch.randn(m, 70, device=device)
    b[m // 2] = b[-1] = b[2]
    assert nearest(b[[2, 2]], b).tolist() == [2, 2]


def test_a_nan_is_nearer_than_any_number(nearest, device):
    a, b = torch.randn(40, 70, device=device), torch.randn(300, 70, device=device)
    a[3, 2] = torch.nan
    assert nearest(a, b)[3] == 0
    b[100, 2] = b[200, 2] = torch.nan
    assert nearest(a, b).tolist() == [100 * (row != 3) for row in range(40)]


@pytest.mark.parametrize("segments", [1, 3])
def test_what_is_infinite_is_farthest_in_triton(load, device, segments):
    function = load("nearest", "triton")
    a, b = torch.randn(40, 70, device=device), torch.randn(300, 70, device=device)
    right = distances(a, b).argmin(-1)
    far = int(right[5])
    b[far, 3] = torch.inf
    right = torch.where(right == far, distances(a, b).argmin(-1), right)
    a[4, 1] = -torch.inf
    right[4] = 0
    assert torch.equal(function(a, b, SEGMENTS=segments), right)
    b[100, 2] = torch.nan
    assert function(a, b, SEGMENTS=segments).tolist() == [100] * 40


def test_points_far_from_the_origin_keep_their_nearest_centre_in_triton(load, device):
    b = 1000 + torch.randn(200, 16, device=device)
    a = b + 0.01 * torch.randn(200, 16, device=device)
    assert load("nearest", "triton")(a, b).tolist() == list(range(200))


def test_points_that_do_not_fit_are_refused_in_triton(load, device):
    function, a = load("nearest", "triton"), torch.randn(5, 8, device=device)
    for b in (torch.randn(3, 7, device=device), a[:0], a.half(), a[0]):
        with pytest.raises(ValueError, match="give"):
            function(a, b)
    assert function(a[:0], a).shape == (0,)
    assert function(a[:, :0], a[:, :0]).tolist() == [0] * 5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_drawn_sizes_match_float64(make, dtype):
    function, chance = import_module("runner.kernels.nearest.triton").nearest, Random(dtype)
    for limit in (40, 300, 3000, 9000, 20_000, 70_000) * 2:
        n, d = chance.randrange(1, limit) | 1, chance.choice([3, 17, 31, 64, 65, 129, 700])
        m = chance.randrange(1, min(20_000, 100_000_000 // n)) | 1
        workload, inputs = make("nearest", dtype=dtype, device="cuda", n=n, m=m, d=d)
        call = workload.call(function, inputs)
        call.run()
        found = workload.expected_outputs(inputs).check(call.run())  # by the plan of the first call
        assert found.correct, (n, m, d, found.reason)
