"""histogram: edges, what is outside, views, and many bins."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from runner.kernels.histogram.cuda import copies_for
from runner.kernels.unsupported import Unsupported


@pytest.fixture(params=["naive", "torch", "triton", "cuda", "cuda global"])
def histogram(request, load):
    impl, _, variant = request.param.partition(" ")
    function = load("histogram", impl)
    return partial(function, variant=variant) if variant else function


def test_the_last_bin_has_1_and_what_is_outside_is_nowhere(histogram, device):
    x = torch.tensor([0, 0.25, 0.49, 0.5, 0.75, 0.99, 1, 1.01, -0.01, torch.inf, -torch.inf, torch.nan], device=device)
    y = histogram(x, bins=4)
    assert y.dtype == torch.int64
    assert y.tolist() == [1, 2, 1, 3]


def test_any_view_is_counted_and_nothing_gives_zeros(histogram, device):
    x = torch.rand(3, 1000, device=device)
    for view in (x[0, 1:], x[1, ::2], x[:, 5], x[0, :0]):
        assert int(histogram(view, bins=16).sum()) == view.numel()


def test_all_elements_of_one_bin_and_more_bins_than_a_block_counts(histogram, device):
    x = torch.full((5000,), 0.5, device=device)
    for bins in (255, 5001):
        y = histogram(x, bins=bins)
        assert y[bins // 2] == y.sum() == 5000


def test_counters_fit_into_shared_memory():
    assert [copies_for(bins) for bins in (1, 256, 384, 385, 1024, 12288)] == [32, 32, 32, 16, 8, 1]
    with pytest.raises(Unsupported, match=r"12289 bins do not fit .* at most 12288, or impl\.variant=global"):
        copies_for(12289)
