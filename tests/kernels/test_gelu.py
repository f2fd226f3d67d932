"""gelu: every file of kernels/gelu at extremes, at any strides, and beyond 2**31 elements."""

from __future__ import annotations

from importlib import import_module
from math import erfc, pi, sqrt, tanh
from pathlib import Path

import pytest
import torch

KERNELS = Path(__file__).parents[2] / "kernels" / "gelu"
IMPLS = sorted(path.stem for path in KERNELS.glob("[!_]*.py"))
FORMS = ["tanh", "erf"]
EXACT = {
    "tanh": lambda x: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "erf": lambda x: 0.5 * x * erfc(-x / sqrt(2)),
}


@pytest.fixture(params=IMPLS)
def impl(request):
    return request.param


@pytest.fixture
def gelu(impl, load):
    return load("gelu", impl)


@pytest.mark.parametrize("form", FORMS)
def test_known_values(gelu, device, form):
    x = [-3.0, -1.0, 0.0, 0.5, 1.0, 3.0]
    y = gelu(torch.tensor(x, device=device), form=form)
    assert y.tolist() == pytest.approx([EXACT[form](v) for v in x], rel=1e-6, abs=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_large_inputs_stay_finite(gelu, device, form):
    x = torch.tensor([10.07, 11.0, 100.0, 1e4, 1e20, 1e38, -10.07, -100.0, -1e4, -1e20], device=device)
    assert torch.equal(gelu(x, form=form), x.clamp(min=0))


@pytest.mark.parametrize("form", FORMS)
def test_nan_and_minus_infinity_are_nan_as_in_torch(gelu, device, form):
    assert gelu(torch.tensor([torch.nan, -torch.inf], device=device), form=form).isnan().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1:, 3:],
        lambda x: x[0],
        lambda x: x.flatten()[1:],
        lambda x: x[:0],
    ],
    ids=["transposed", "every other", "sliced", "1-d", "unaligned", "empty"],
)
def test_any_view_gives_what_its_copy_gives(gelu, device, form, view):
    x = view(torch.randn(70, 33, device=device))
    y = gelu(x, form=form)
    assert y.shape == x.shape
    assert torch.allclose(y, gelu(x.clone(memory_format=torch.contiguous_format), form=form), rtol=0, atol=2e-6)


def test_the_input_is_left_as_it_was(gelu, device):
    x = torch.randn(100, device=device)
    before = x.clone()
    gelu(x, form="tanh")
    assert torch.equal(x, before)


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements():
    x = torch.zeros(2**31 + 4097, dtype=torch.bfloat16, device="cuda")
    x[-5000:] = 1
    y = import_module("kernels.gelu.triton").gelu(x, form="tanh")
    assert y[-5001] == 0
    assert (y[-5000:] == 0.83984375).all()  # 0.8412 as a bfloat16
