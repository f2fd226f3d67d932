"""What is differentiable once in Triton refuses a second time, whatever it was that the first was taken of."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from runner.kernels.differentiable import apply, no_second_derivative
from runner.kernels.triton_device import OLD

OPTIONS = {"gelu": {"form": "erf"}, "softmax": {}, "square": {}, "norm": {"dim": 1}, "mlp": {"activation": "gelu"}}
OPTIONS |= {"layernorm": {"eps": 1e-5}, "rmsnorm": {"eps": 1e-5}}
PARAMETERS = {"mlp": [(24, 24), (24,)], "layernorm": [(24,), (24,)], "rmsnorm": [(24,)]}


@pytest.fixture(params=OPTIONS)
def inputs(request, device):
    """``x`` [24, 24], and the parameters, if there are any."""
    shapes = [(24, 24), *PARAMETERS.get(request.param, [])]
    return [torch.randn(*shape, device=device, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.fixture
def forward(request, load, inputs):
    op = request.node.callspec.params["inputs"]
    if op == "mlp" and OLD:
        pytest.skip("this Triton multiplies no tiles")
    function = load(op, "triton")
    return lambda *given: function(*given, **OPTIONS[op])


def twice():
    """A second derivative is asked for within."""
    return pytest.raises(RuntimeError, match="can be differentiated once")


@pytest.mark.parametrize("transposed", [False, True])
def test_a_gradient_penalty_is_refused_rather_than_left_out(forward, inputs, transposed):
    given = [tensor.t() if transposed and tensor.dim() == 2 else tensor for tensor in inputs]
    y = forward(*given)
    c = torch.randn_like(y)  # what comes in is a constant
    for one in inputs:
        (g,) = torch.autograd.grad((y * c).sum(), one, create_graph=True)
        loss = y.sum() ** 2 + g.square().sum()
        with twice():
            loss.backward(retain_graph=True)
        for other in inputs:
            with twice():
                torch.autograd.grad(loss, other, retain_graph=True)


def test_it_is_refused_where_parameters_alone_have_gradients(forward, inputs):
    x, *params = inputs
    given = params or [x]
    y = forward(*(tensor if any(tensor is one for one in given) else tensor.detach() for tensor in inputs))
    found = torch.autograd.grad(y.sum(), given, create_graph=True)
    for g in found:
        with twice():
            torch.autograd.grad(y.sum() ** 2 + g.square().sum(), given[-1], retain_graph=True)


def test_so_is_the_derivative_by_the_gradient_that_came_in(forward, inputs):
    y = forward(*inputs)
    dy = torch.randn_like(y, requires_grad=True)
    (g,) = torch.autograd.grad(y, inputs[0], dy, create_graph=True)
    with twice():
        torch.autograd.grad(g.sum(), dy, retain_graph=True, allow_unused=True)
    with twice():
        g.sum().backward()


def test_a_gradient_that_nobody_differentiates_is_the_gradient(forward, inputs):
    y = forward(*inputs)
    dy = torch.randn_like(y)
    plain = torch.autograd.grad(y, inputs, dy, retain_graph=True)
    kept = torch.autograd.grad(y, inputs, dy, create_graph=True)
    assert not any(one.requires_grad for one in plain)
    assert all(torch.equal(one, other.detach()) for one, other in zip(plain, kept, strict=True))


def test_what_is_saved_may_be_computed_anew_where_a_checkpoint_says_so(forward, inputs):
    from torch.utils.checkpoint import checkpoint

    plain = torch.autograd.grad(forward(*inputs).sum(), inputs)
    y = checkpoint(forward, *inputs, use_reentrant=False)
    kept = torch.autograd.grad(y.sum(), inputs, create_graph=True)
    assert all(torch.equal(one, other.detach()) for one, other in zip(plain, kept, strict=True))


def test_several_gradients_and_none_where_none_is_wanted():
    """Plain torch needs no kernel, with or without Triton."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, times):
            ctx.save_for_backward(a, b)
            ctx.times = times
            return a * b * times

        @staticmethod
        @no_second_derivative
        def backward(ctx, saved, dy):
            a, b = saved
            assert not torch.is_grad_enabled()
            return dy * b * ctx.times, dy * a * ctx.times if ctx.needs_input_grad[1] else None, None

    a, b = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *ab: Product.apply(*ab, 2), (a, b))
    for other in (b, b.detach()):
        given = [tensor for tensor in (a, other) if tensor.requires_grad]
        found = torch.autograd.grad(Product.apply(a, other, 2).sum(), given, create_graph=True)
        for one, factor in zip(found, (other, a), strict=False):
            assert torch.equal(one, 2 * factor)
            with twice():
                torch.autograd.grad(one.sum(), a, retain_graph=True)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.factor, None


def test_apply_is_that_of_torch():
    x = torch.randn(3, requires_grad=True)
    for call in (apply, lambda function, *args: function.apply(*args)):
        y = call(_Twice, x, 2)
        assert torch.equal(y, 2 * x)
        assert y.grad_fn.name() == "_TwiceBackward"
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2.0))
        assert call(_Twice, x.detach(), 2).grad_fn is None


def test_apply_under_torch_func_says_what_torch_says():
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.vmap(lambda x: apply(_Twice, x, 2))(torch.randn(2, 3))


def test_apply_takes_a_tensor_that_outlived_a_transform():
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(torch.ones(3))
    assert torch.equal(apply(_Twice, kept[0], 2), torch.full((3,), 2.0))
