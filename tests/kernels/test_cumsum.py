"""cumsum: views, what is no number, and rows longer than a block."""

from __future__ import annotations

import pytest
import torch

VIEWS = [
    lambda x: x.t(),
    lambda x: x[:, ::2],
    lambda x: x[1:, 3:],
    lambda x: x[:0],
    lambda x: x[:, :0],
    lambda x: x[:, :1],
]


@pytest.fixture(params=["naive", "torch", "triton"])
def cumsum(request, load):
    return load("cumsum", request.param)


def test_any_view_gives_a_copy_of_what_its_copy_gives(cumsum, device):
    for view in VIEWS:
        x = view(torch.randint(-9, 9, (40, 33), device=device).float())  # sums of small integers are exact
        y = cumsum(x)
        assert torch.equal(y, x.cumsum(-1))
        assert not y.numel() or y.data_ptr() != x.data_ptr()


def test_infinity_and_nan_stay_from_where_they_are(cumsum, device):
    inf, nan = torch.inf, torch.nan
    x = torch.ones(2, 9000, device=device)
    x[0, 5000], x[1, 5000] = inf, nan
    y = cumsum(x)
    assert torch.equal(y[:, :5000], torch.arange(1.0, 5001, device=device).expand(2, -1))
    assert y[0, 5000:].eq(inf).all()
    assert y[1, 5000:].isnan().all()
