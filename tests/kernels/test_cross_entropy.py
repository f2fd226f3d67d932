"""cross_entropy: every file on infinities, ignored rows, logits apart in memory, and vocabularies of any length."""

from __future__ import annotations

from importlib import import_module
from random import Random

import pytest
import torch

from .layouts import LAYOUTS

VOCABS = [5, 1000, 20_001]  # several rows a block of the backward | one or two, and one step | several steps, and edges
INF = torch.inf

VIEWS = LAYOUTS | {
    "empty": lambda x: x[:0],
}


@pytest.fixture(params=["naive", "torch", "triton"])
def cross_entropy(request, load):
    return load("cross_entropy", request.param)


def gradient(cross_entropy, x, target, dloss):
    """Take ``x``, which may be any view."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(cross_entropy(x, target), x, dloss)
    return dx


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("scale", [1, 1e4])
def test_logits_of_any_size_match_float64(cross_entropy, device, make, error, vocab, scale):
    workload, (x, *others) = make("cross_entropy", dtype="float32", device=device, rows=4, vocab=vocab, pass_="fwd_bwd")
    inputs = x * scale, *others
    assert error(workload.reference(*inputs), workload.call(cross_entropy, inputs).run()) <= 1


@pytest.mark.parametrize("vocab", VOCABS)
def test_ignored_rows_have_no_loss_and_no_gradient(cross_entropy, device, vocab):
    x, target = torch.randn(6, vocab, device=device), torch.tensor([0, -100, vocab - 1, -100, -100, 1], device=device)
    loss, dx = cross_entropy(x, target), gradient(cross_entropy, x, target, torch.ones(6, device=device))
    ignored = target == -100
    assert not loss[ignored].any()
    assert not dx[ignored].any()
    assert (loss[~ignored] > 0).all()
    assert torch.allclose(dx[~ignored].sum(-1), torch.zeros((), device=device), atol=1e-5)


@pytest.mark.parametrize("vocab", VOCABS)
def test_infinities_are_as_in_torch(cross_entropy, device, vocab):
    x, target = torch.randn(5, vocab, device=device), torch.full((5,), 2, device=device)
    x[0] = -INF
    x[1, 3] = INF
    x[2, 3] = torch.nan
    x[3, 2] = -INF
    x[4, :2], x[4, 3:] = -INF, -INF  # leaves the target
    loss, dx = cross_entropy(x, target), gradient(cross_entropy, x, target, torch.ones(5, device=device))
    assert loss[:3].isnan().all()
    assert loss[3:].tolist() == [INF, 0]
    assert dx[:3].isnan().any(-1).all()
    assert not dx[4].any()


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_gives_what_its_copy_gives(cross_entropy, device, vocab, view):
    x = view(torch.randn(4, vocab, device=device))
    rows, vocab = x.shape
    target, dloss = torch.randint(vocab, (2 * rows,), device=device)[::2], torch.randn(2 * rows, device=device)[::2]
    copied = x.clone(memory_format=torch.contiguous_format)
    assert torch.allclose(cross_entropy(x, target), cross_entropy(copied, target), rtol=1e-5)
    dx = gradient(cross_entropy, x, target, dloss)
    assert torch.allclose(dx, gradient(cross_entropy, copied, target, dloss), rtol=1e-5, atol=1e-7)


def test_backward_agrees_with_finite_differences(cross_entropy, device):
    x = torch.randn(4, 7, device=device, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 6, 3, 3], device=device)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, target) * 1, x, nondet_tol=1e-12)


def test_a_target_that_is_no_column_gives_nan_in_triton_and_reads_nothing(load, device):
    x, target = torch.randn(3, 50, device=device), torch.tensor([50, -1, 2**40], device=device)
    assert load("cross_entropy", "triton")(x, target).isnan().all()


def test_targets_that_do_not_fit_the_logits_are_refused_in_triton(load, device):
    function, x = load("cross_entropy", "triton"), torch.randn(8, 20, device=device)
    target = torch.zeros(8, dtype=torch.int64, device=device)
    assert torch.equal(function(x, target), function(x, target.int()))
    for logits, wrong in (
        (x, target[:2]),
        (x, target.float()),
        (x[0], target[:1]),
        (x, target[:, None]),
        (x, target.to("meta")),
    ):
        with pytest.raises(ValueError, match="a whole number for each row"):
            function(logits, wrong)


def test_a_gradient_penalty_is_refused_in_triton(load, device):
    x = torch.randn(3, 50, device=device, requires_grad=True)
    loss = load("cross_entropy", "triton")(x, torch.zeros(3, dtype=torch.int64, device=device))
    (dx,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        dx.square().sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_drawn_sizes_match_float64_forward_and_backward(make, error, dtype):
    function, chance = import_module("runner.kernels.cross_entropy.triton").cross_entropy, Random(dtype)
    for limit in (40, 300, 3000, 9000, 70_000, 300_000) * 2:
        vocab = chance.randrange(2, limit) | 1
        rows = chance.randrange(1, max(2, 3_000_000 // vocab))
        workload, inputs = make("cross_entropy", dtype=dtype, device="cuda", rows=rows, vocab=vocab, pass_="fwd_bwd")
        call = workload.call(function, inputs)
        call.run()
        assert error(workload.reference(*inputs), call.run()) <= 1, (rows, vocab)  # by the plan of the first call
