"""softmax: every file of kernels/softmax on rows that overflow, hold infinities, or lie apart in memory."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

from .layouts import LAYOUTS

KERNELS = Path(__file__).parents[2] / "kernels" / "softmax"
IMPLS = sorted(path.stem for path in KERNELS.glob("[!_]*.py"))
COLS = [5, 1000, 33_000]  # several rows a program | one | a loop over the row
INF = torch.inf

VIEWS = LAYOUTS | {
    "3-d": lambda x: x.view(2, 2, -1),
    "1-d": lambda x: x[0],
    "empty": lambda x: x[:0],
}


@pytest.fixture(params=IMPLS)
def impl(request):
    return request.param


@pytest.fixture
def softmax(impl, load):
    return load("softmax", impl)


@pytest.mark.parametrize("cols", COLS)
def test_rows_sum_to_1_and_ignore_a_shift(softmax, device, cols):
    x = torch.randn(3, cols, device=device, dtype=torch.float64)
    y = softmax(x)
    assert torch.allclose(y.sum(-1), torch.ones(3, device=device, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(y, softmax(x + 1000), rtol=1e-10)


@pytest.mark.parametrize("cols", COLS)
def test_logits_of_ten_thousands_stay_right(softmax, device, cols, make, error):
    workload, (x,) = make("softmax", dtype="float32", device=device, rows=3, cols=cols)
    x = x * 1e4
    assert error(workload.reference(x), [softmax(x)]) < 1


@pytest.mark.parametrize("dtype", ["float16", "float32"])
# Read once, twice and three times by Triton; with and without elements before and after whole vectors.
@pytest.mark.parametrize("cols", [65, 514, 1001, 3000, 4096, 12_000, 16_384, 20_001])
def test_rows_of_thousands_match_float64(softmax, device, make, error, dtype, cols):
    workload, (x,) = make("softmax", dtype=dtype, device=device, rows=3, cols=cols)
    assert error(workload.reference(x), [softmax(x)]) < 1


@pytest.mark.parametrize("cols", COLS)
def test_a_constant_row_is_uniform(softmax, device, cols):
    y = softmax(torch.full((2, cols), 1e4, device=device))
    assert torch.allclose(y, torch.full_like(y, 1 / cols), rtol=1e-5)


@pytest.mark.parametrize("cols", COLS)
def test_infinities_are_as_in_torch(softmax, impl, device, cols):
    if impl == "quack" and cols == max(COLS):
        pytest.skip("QuACK gives NaN for a long row that begins with -inf but for one element")
    x = torch.randn(5, cols, device=device)
    x[0] = -INF
    x[1, 3] = INF
    x[2, 3] = torch.nan
    x[3, 1:] = -INF  # leaves one weight of 1
    y = softmax(x)
    assert y[:3].isnan().all()
    assert y[3, 0] == 1
    assert not y[3, 1:].any()
    assert y[4].isfinite().all()


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_gives_what_its_copy_gives(softmax, device, cols, view):
    x = view(torch.randn(4, cols, device=device))
    y = softmax(x)
    assert y.shape == x.shape
    assert torch.allclose(y, softmax(x.clone(memory_format=torch.contiguous_format)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (0,), (2, 0, 3)])
def test_of_nothing_it_is_nothing(softmax, device, shape):
    assert softmax(torch.empty(shape, device=device)).shape == shape


@pytest.fixture(params=["naive", "torch", "triton"])
def differentiable(request, load):
    """Those that have a backward."""
    return load("softmax", request.param)


def gradient(softmax, x, dy):
    """Take ``x``, which may be any view."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(softmax(x), x, dy)
    return dx


@pytest.mark.parametrize("cols", COLS)
def test_gradients_of_a_row_sum_to_0(differentiable, device, cols):
    x, dy = (torch.randn(3, cols, device=device, dtype=torch.float64) for _ in range(2))
    dx = gradient(differentiable, x, dy)
    assert float(dx.sum(-1).abs().max()) < 1e-12
    assert torch.allclose(dx, gradient(differentiable, x + 1000, dy + 10), rtol=0, atol=1e-10)


def test_backward_agrees_with_finite_differences(differentiable, device):
    x = torch.randn(4, 7, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: differentiable(x) * 1, x, nondet_tol=1e-12)


@pytest.mark.parametrize("shape", [(5, 0), (0, 5)])
def test_of_nothing_the_gradient_is_nothing(differentiable, device, shape):
    x, dy = (torch.empty(shape, device=device) for _ in range(2))
    assert gradient(differentiable, x, dy).shape == shape


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("scale", [1, 1e4])
def test_backward_of_any_logits_is_right(differentiable, device, cols, scale, make, error):
    workload, (x, dy) = make("softmax", dtype="float32", device=device, rows=3, cols=cols, pass_="bwd")
    x = x * scale
    assert error(workload.reference(x, dy), [gradient(differentiable, x, dy)]) < 1


@pytest.mark.parametrize("cols", COLS)
def test_backward_of_infinities(differentiable, device, cols):
    x = torch.randn(4, cols, device=device)
    x[0] = -INF
    x[1, 3] = torch.nan
    x[2, 1:] = -INF  # leaves one weight of 1, which no x changes
    dx = gradient(differentiable, x, torch.randn_like(x))
    assert dx[:2].isnan().all()
    assert not dx[2].any()
    assert dx[3].isfinite().all()


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_backward_of_any_view_gives_what_its_copy_gives(differentiable, device, cols, view):
    x, dy = (view(torch.randn(4, cols, device=device)) for _ in range(2))
    dx = gradient(differentiable, x, dy)
    copied = gradient(differentiable, *(t.clone(memory_format=torch.contiguous_format) for t in (x, dy)))
    assert dx.shape == x.shape
    assert torch.allclose(dx, copied, rtol=1e-5, atol=1e-6)  # it is a difference of what may be alike


def test_autograd_keeps_nothing_of_triton_where_no_gradient_is_asked_for(load, device):
    softmax = load("softmax", "triton")
    with torch.no_grad():
        assert softmax(torch.ones(3, device=device, requires_grad=True)).grad_fn is None
    assert softmax(torch.ones(3, device=device)).grad_fn is None


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("rows", "cols"), [(2, 70_001), (3, 40_000)])
def test_slices_of_a_few_long_rows_in_triton(load, device, monkeypatch, make, error, dtype, rows, cols):
    softmax = load("softmax", "triton")
    monkeypatch.setattr(import_module(softmax.__module__), "multiprocessors", lambda _: 132)
    workload, (x, dy) = make("softmax", dtype=dtype, device=device, rows=rows, cols=cols, pass_="bwd")
    forward, (_,) = make("softmax", dtype=dtype, device=device, rows=rows, cols=cols)
    x[0, : cols // 2] = -INF  # whole slices
    assert error(forward.reference(x), [softmax(x)]) < 1
    assert error(workload.reference(x, dy), [gradient(softmax, x, dy)]) < 1


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [262_144, 1_000_003])
def test_rows_of_a_million_columns(make, error, cols):
    workload, (x,) = make("softmax", dtype="float32", device="cuda", rows=70, cols=cols)
    assert error(workload.reference(x), [import_module("runner.kernels.softmax.triton").softmax(x)]) < 1


@pytest.mark.gpu
def test_a_row_of_just_below_2_to_the_31():
    from runner.kernels.softmax.triton import softmax

    x = torch.full((1, 2**31 - 1), -torch.inf, dtype=torch.float16, device="cuda")
    x[0, -2:] = 1
    y = softmax(x)
    assert not y[0, :-2].any()
    assert (y[0, -2:] == 0.5).all()
    dx = gradient(softmax, x, torch.arange(2, device="cuda").half().repeat(2**30)[1:][None])
    assert not dx[0, :-2].any()
    assert dx[0, -2:].tolist() == [-0.25, 0.25]


@pytest.mark.parametrize("step", ["three_pass", "online"])
def test_teaching_steps_in_triton_are_right(make, error, device, step):
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("test_under_the_interpreter.py runs this one")
    function = import_module(f"runner.kernels.softmax.{step}").softmax
    for rows, cols in ((3, 1), (2, 4096), (3, 9001)):
        workload, (x,) = make("softmax", dtype="float32", device=device, rows=rows, cols=cols)
        x[0, 1::2] = -torch.inf  # many lanes of a step are empty
        assert error(workload.reference(x), [function(x)]) < 1
        assert error(workload.reference(x.t().contiguous().t()), [function(x.t().contiguous().t())]) < 1
