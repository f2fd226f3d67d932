"""add: every file of kernels/add at extremes, at any strides, and of tensors that are not alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

KERNELS = Path(__file__).parents[2] / "kernels" / "add"
IMPLS = sorted(path.stem for path in KERNELS.glob("[!_]*.py"))

VIEWS = {
    "transposed": lambda x: x.t(),
    "every other": lambda x: x[:, ::2],
    "sliced": lambda x: x[1:, 3:],
    "unaligned": lambda x: x.flatten()[1:],
    "empty": lambda x: x[:0],
    "a number": lambda x: x[0, 0],
}


@pytest.fixture(params=IMPLS)
def add(request, load):
    return load("add", request.param)


def test_known_values_and_what_is_no_number(add, device):
    inf, nan = torch.inf, torch.nan
    a = torch.tensor([1.0, -2.5, inf, inf, nan, 3e38, 0.0], device=device)
    b = torch.tensor([2.0, 2.5, 1.0, -inf, 1.0, 3e38, -0.0], device=device)
    assert torch.equal(
        add(a, b).nan_to_num(nan=7.0), torch.tensor([3, 0, inf, 7, 7, inf, 0], device=device).nan_to_num(7)
    )


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_any_view_gives_what_its_copy_gives(add, device, view, dtype):
    a, b = (VIEWS[view](torch.randn(40, 33, device=device).to(dtype)) for _ in range(2))
    y = add(a, b)
    assert y.shape == a.shape
    assert torch.equal(y, a + b)


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(4, dtype=torch.float64), torch.ones(2, 2)])
def test_what_is_not_alike_is_refused(load, device, other):
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("naive and torch take what PyTorch takes")
    with pytest.raises(ValueError, match="a "):
        load("add", "triton")(torch.ones(4, device=device), other.to(device))


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["triton", "cuda"])
def test_more_than_2_to_the_31_elements(load, impl):
    a = torch.ones(2**31 + 8, device="cuda", dtype=torch.float16)
    y = load("add", impl)(a, a)
    assert y[-9:].tolist() == [2.0] * 9
    assert float(y[:9].sum()) == 18.0
