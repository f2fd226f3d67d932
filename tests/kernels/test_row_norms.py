"""layernorm and rmsnorm: every file on rows without variance, with a large mean, apart in memory, and of any length."""

from __future__ import annotations

from importlib import import_module
from random import Random

import pytest
import torch

from runner.subject.tolerance import Judge

from .layouts import LAYOUTS

OPS = ["layernorm", "rmsnorm"]
COLS = [5, 1000, 3000]  # several rows a program | one | one, and a loop where ``short_rows_loop`` says so

VIEWS = LAYOUTS | {
    "3-d": lambda x: x.view(2, 2, -1),
    "1-d": lambda x: x[0],
    "empty": lambda x: x[:0],
}


@pytest.fixture(params=["naive", "torch", "triton"])
def impl(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["held", "loop"])
def loop(request, impl, monkeypatch):
    """Whether rows of Triton that would fit into registers are read twice, in steps."""
    if request.param and impl != "triton":
        pytest.skip("the same as held")
    if request.param:
        module = pytest.importorskip("runner.kernels.row_norms")
        monkeypatch.setattr(module, "HELD_BACKWARD", dict.fromkeys((2, 4, 8), 64))
        for name, value in {"HELD": 64, "STEP": 2048, "LONG_STEP": 1024, "FEW": 2, "STEP_BACKWARD": 512}.items():
            monkeypatch.setattr(module, name, value)
    return request.param


def judged(make, op, device, change, *, dtype="float32", rows=5, cols=1000, pass_="fwd_bwd"):
    """The workload, its inputs with x changed, and the judge of its outputs."""
    workload, (x, *others) = make(op, dtype=dtype, device=device, rows=rows, cols=cols, pass_=pass_)
    inputs = change(x), *others
    return workload, inputs, Judge(workload.outputs_of, inputs, quick=True)


def vectors(op, cols, **kind):
    """The weight, and the bias of layernorm."""
    return [torch.randn(cols, **kind) for _ in range(2 if op == "layernorm" else 1)]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 1e4,
        lambda x: x + 1000,
        lambda x: x * 1e-4,
        lambda x: x.index_fill(1, torch.arange(4, device=x.device), 1e3),
    ],
    ids=["large", "a large mean", "small", "the first ones unlike others"],
)
def test_extreme_rows_match_float64(impl, load, make, device, loop, op, change):
    workload, inputs, judge = judged(make, op, device, change)
    result = judge.check_tensors(workload.call(load(op, impl), inputs).run())
    assert result.correct, result.reason


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("dtype", "rows", "cols"),
    [("float32", 32, 64), ("float16", 3, 2048), ("float32", 2, 1280), ("float32", 1, 16384), ("float32", 1, 9001)],
    ids=["several a program", "one", "five steps", "two steps", "three steps, the last not whole"],
)
def test_some_rows_that_fill_their_tiles_or_are_read_again_match_float64(
    impl, load, make, device, op, dtype, rows, cols
):
    def change(x):
        x[0, :4] = 20  # the mean of these is not near that of the row
        return x + 3

    workload, inputs, judge = judged(make, op, device, change, dtype=dtype, rows=rows, cols=cols)
    result = judge.check_tensors(workload.call(load(op, impl), inputs).run())
    assert result.correct, result.reason


@pytest.mark.parametrize("cols", COLS)
def test_a_constant_row_gives_the_bias_and_zeros_give_zeros(impl, load, device, loop, cols):
    w, b = vectors("layernorm", cols, device=device)
    for value in (0.0, 3.0, 1e4):
        y = load("layernorm", impl)(torch.full((2, cols), value, device=device), w, b, eps=1e-5)
        assert torch.allclose(y, b.expand(2, -1), atol=1e-3 if value else 0)
    assert not load("rmsnorm", impl)(torch.zeros(2, cols, device=device), w, eps=1e-5).any()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_gives_what_its_copy_gives_with_its_gradients(impl, load, device, loop, op, view):
    x, dy = (view(torch.randn(4, 700, device=device)) for _ in range(2))
    function, others = load(op, impl), vectors(op, 2 * x.shape[-1], device=device)
    others = [each[::2] for each in others]

    def results(*tensors):
        *args, dy = tensors
        args = [tensor.detach().requires_grad_() for tensor in args]
        y = function(*args, eps=1e-5)
        return y, *torch.autograd.grad(y, args, dy)

    given = results(x, *others, dy)
    copied = results(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in (x, *others, dy)))
    assert given[0].shape == x.shape
    for one, other in zip(given, copied, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_backward_agrees_with_finite_differences(impl, load, device, loop, op):
    function = load(op, impl)
    args = [
        torch.randn(4, 70, device=device, dtype=torch.float64)[:, :7],
        *vectors(op, 7, device=device, dtype=torch.float64),
    ]
    args = [each.detach().requires_grad_() for each in args]
    assert torch.autograd.gradcheck(lambda *args: function(*args, eps=1e-5) * 1, args, nondet_tol=1e-12)


@pytest.mark.parametrize("op", OPS)
def test_of_frozen_weights_triton_has_no_gradient_and_of_nothing_zeros(load, device, op):
    function, others = load(op, "triton"), vectors(op, 50, device=device)
    x = torch.randn(3, 50, device=device, requires_grad=True)
    (dx,) = torch.autograd.grad(function(x, *others, eps=1e-5), x, torch.ones_like(x))
    again = [each.requires_grad_() for each in others]
    dx_too, *_ = torch.autograd.grad(function(x, *again, eps=1e-5), [x, *again], torch.ones_like(x))
    assert torch.equal(dx, dx_too)
    empty = torch.empty(0, 50, device=device)
    assert not any(each.any() for each in torch.autograd.grad(function(empty, *again, eps=1e-5), again, empty))


@pytest.mark.parametrize("op", OPS)
def test_vectors_that_do_not_fit_the_rows_are_refused_in_triton(load, device, op):
    function, x = load(op, "triton"), torch.randn(4, 20, device=device)
    for length in (1, 5, 40):
        with pytest.raises(ValueError, match="as long as a row of x"):
            function(x, *vectors(op, length, device=device), eps=1e-5)
    whole = [each.long() for each in vectors(op, 20, device=device)]
    for wrong in ((x, *whole), (x[0, 0], *vectors(op, 20, device=device)), (x, *vectors(op, 20, device="meta"))):
        with pytest.raises(ValueError, match="as long as a row of x"):
            function(*wrong, eps=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_gradients_of_the_weights_have_the_same_bits_each_time(impl, load, device, loop, op):
    x, dy = (torch.randn(40, 130, device=device) for _ in range(2))
    args = [x.requires_grad_(), *(each.requires_grad_() for each in vectors(op, 130, device=device))]
    runs = [torch.autograd.grad(load(op, impl)(*args, eps=1e-5), args, dy) for _ in range(2)]
    assert all(map(torch.equal, *runs))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_drawn_sizes_match_float64_forward_and_backward(make, op, dtype):
    function, chance = getattr(import_module(f"runner.kernels.{op}.triton"), op), Random(f"{op} {dtype}")
    for limit in (40, 300, 1000, 3000, 9000, 70_000) * 2:
        cols = chance.randrange(2, limit) | 1
        rows = chance.randrange(1, max(2, 3_000_000 // cols))
        workload, inputs, judge = judged(make, op, "cuda", lambda x: x, dtype=dtype, rows=rows, cols=cols)
        call = workload.call(function, inputs)
        call.run()
        result = judge.check_tensors(call.run())  # by the plan that the first call has recorded
        assert result.correct, (rows, cols, result.reason)
