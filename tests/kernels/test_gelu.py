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

VIEWS = {
    "transposed": lambda x: x.t(),
    "every other": lambda x: x[:, ::2],
    "sliced": lambda x: x[1:, 3:],
    "1-d": lambda x: x[0],
    "unaligned": lambda x: x.flatten()[1:],
    "empty": lambda x: x[:0],
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
    assert torch.allclose(gelu(x, form=form), x.clamp(min=0), rtol=0, atol=1e-22)  # 4e-23 at -10.07, if not rounded off


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_number_of_16_bits_is_right_in_the_left_tail_in_triton_too(load, device, dtype):
    """Relative to y, where float64 has erfc: what cancels, as 1 + erf does, has lost all digits at x = -5.5."""
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter cuts bfloat16 off where a GPU rounds")
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=device).to(torch.int16)
    x = bits.view(torch.float16 if dtype == torch.float16 else torch.bfloat16).to(dtype)
    x = x[x.isfinite() & (x != 0)]
    y = load("gelu", "triton")(x, form="erf").double()
    exact = x.double() * torch.special.erfc(-x.double() / sqrt(2)) / 2
    number = torch.finfo(dtype)
    rounding = number.eps * exact.abs().clamp(min=number.smallest_normal)
    for beyond, allowed in ((-4, 4e-4), (-6, 1e-3), (-8, 4e-3)):
        near = x > beyond
        assert ((y - exact).abs() <= 0.51 * rounding + allowed * exact.abs())[near].all()


@pytest.mark.parametrize("form", FORMS)
def test_nan_and_minus_infinity_are_nan_as_in_torch(gelu, device, form):
    assert gelu(torch.tensor([torch.nan, -torch.inf], device=device), form=form).isnan().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
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


@pytest.fixture(params=["naive", "torch", "triton"])
def differentiable(request, load):
    """Those that have a backward."""
    return load("gelu", request.param)


def gradient(gelu, x, dy, form):
    """Take ``x``, which may be any view."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(gelu(x, form=form), x, dy)
    return dx


@pytest.mark.parametrize("form", FORMS)
def test_backward_agrees_with_finite_differences(differentiable, device, form):
    x = torch.linspace(-6, 6, 301, dtype=torch.float64, device=device)
    step = 1e-5
    slope = (differentiable(x + step, form=form) - differentiable(x - step, form=form)) / (2 * step)
    assert torch.allclose(gradient(differentiable, x, torch.ones_like(x), form), slope, rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_backward_of_large_inputs_is_0_or_1_in_triton(load, device, form):
    x = torch.tensor(
        [9.7, 10.07, 100.0, 1e4, 1e20, 1e38, torch.inf, -11, -100.0, -1e4, -1e20, -torch.inf], device=device
    )
    dx = gradient(load("gelu", "triton"), x, torch.full_like(x, 3.0), form)
    assert torch.allclose(dx, 3.0 * (x > 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_backward_of_nan_is_nan_and_of_its_neighbours_is_not(differentiable, device, form):
    x, dy = torch.tensor([0.0, torch.nan, 1.0], device=device), torch.tensor([1.0, 1.0, torch.nan], device=device)
    assert gradient(differentiable, x, dy, form).isnan().tolist() == [False, True, True]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_backward_of_any_view_gives_what_its_copy_gives(differentiable, device, form, view):
    x, dy = (view(torch.randn(70, 33, device=device)) for _ in range(2))
    dx = gradient(differentiable, x, dy, form)
    copied = gradient(differentiable, *(t.clone(memory_format=torch.contiguous_format) for t in (x, dy)), form)
    assert dx.shape == x.shape
    assert torch.allclose(dx, copied, rtol=0, atol=4e-6)


def test_a_gradient_that_is_one_number_for_all(differentiable, device):
    x = torch.randn(9, 33, device=device, requires_grad=True)
    differentiable(x, form="erf").mean().backward()  # which autograd hands on as a view with strides of 0
    assert torch.allclose(x.grad, gradient(differentiable, x, torch.full_like(x, 1 / x.numel()), "erf"), rtol=1e-5)


def test_autograd_keeps_nothing_of_triton_where_no_gradient_is_asked_for(load, device):
    gelu = load("gelu", "triton")
    with torch.no_grad():
        assert gelu(torch.ones(3, device=device, requires_grad=True), form="tanh").grad_fn is None
    assert gelu(torch.ones(3, device=device), form="tanh").grad_fn is None


@pytest.mark.parametrize("impl", ["triton", "cuda"], indirect=True)
def test_a_form_that_there_is_not_is_refused(gelu, device):
    with pytest.raises(ValueError, match="form 'none': give tanh or erf"):
        gelu(torch.ones(3, device=device), form="none")


@pytest.mark.gpu
def test_backward_of_more_than_2_to_the_31_elements():
    x = torch.zeros(2**31 + 4097, dtype=torch.bfloat16, device="cuda")
    x[-5000:] = 40
    dy = x.clone()
    y = import_module("runner.kernels.gelu.triton").gelu(x.requires_grad_(), form="tanh")
    (dx,) = torch.autograd.grad(y, x, dy)
    assert dx[-5001] == 0
    assert (dx[-5000:] == 40).all()


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements():
    x = torch.zeros(2**31 + 4097, dtype=torch.bfloat16, device="cuda")
    x[-5000:] = 1
    y = import_module("runner.kernels.gelu.triton").gelu(x, form="tanh")
    assert y[-5001] == 0
    assert (y[-5000:] == 0.83984375).all()  # 0.8412 as a bfloat16
