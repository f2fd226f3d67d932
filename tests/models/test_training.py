"""training: a backward alone, of whatever function, as often as wanted and on whatever stream."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch
from torch._functorch import config

from runner.kernels.adamw.torch import adamw
from runner.kernels.unsupported import Unsupported
from runner.models import training


def test_the_forward_is_made_once_and_its_backward_each_time():
    made = []
    x, dy = torch.randn(5), torch.randn(5)
    call = training.backward_only(lambda x: (made.append(1), x**3)[1], x, dy)
    for _ in range(3):
        assert torch.allclose(call.run()[0], 3 * x**2 * dy)
    assert len(made) == 1
    assert not x.requires_grad


def test_a_function_without_a_backward_is_unsupported():
    with pytest.raises(Unsupported, match="it has no backward"):
        training.backward_only(lambda x: x.detach() * 2, torch.ones(3), torch.ones(3)).run()


@pytest.mark.parametrize("make", [training.backward_only, training.with_backward])
def test_an_input_that_the_function_detaches_has_no_gradient_and_the_others_have(make):
    a, b, dy = torch.randn(3, 4).unbind()
    *_, of_a, of_b = make(lambda a, b: a * b.detach(), a, b, dy).run()
    assert torch.equal(of_a, b * dy)
    assert of_b is None  # which the check of outputs tells


@pytest.mark.parametrize("optimizer", [None, partial(adamw, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)])
def test_a_parameter_that_the_forward_does_not_use_has_a_gradient_of_0_and_stays(optimizer):
    a, b = training.copies(torch.randn(2, 4).unbind())
    start = b.detach().clone()
    call = training.train(lambda: a * 2, 2, [a, b], accumulate=False, lr=0.1, adamw=optimizer, with_gradients=True)
    *_, now, of_a, of_b = call.run()
    assert of_a.all()
    assert not of_b.any()
    assert torch.equal(now, start)
    _, *gradients = training.forward_backward(lambda: a * 2, 1, [a, b], accumulate=False).run()
    assert not gradients[1].any()


def test_the_gradients_of_a_step_are_gone_when_the_next_one_begins():
    (a,) = training.copies([torch.randn(4)])
    of_steps = []
    call = training.train(
        lambda: a * 2, 3, [a], accumulate=False, lr=0.1, with_y=True, with_gradients=True,
        load=lambda step: of_steps and of_steps.append(of_steps.pop()() is None),
        on_loss=lambda loss: of_steps.append(weakref.ref(a.grad)),
    )  # fmt: skip
    _, _, of_a = call.run()
    assert of_steps[:-1] == [True, True]
    assert of_steps[-1]() is of_a


def test_a_compiled_backward_may_run_again_and_training_may_reuse_its_buffers_all_the_same():
    """torch.compile lets a backward write over what was saved for it, unless it is told that it will run again."""

    def naive(x):
        weights = torch.exp(x - x.amax(-1, keepdim=True).detach())
        return weights / weights.sum(-1, keepdim=True)

    x, dy = torch.randn(4, 50), torch.randn(4, 50)
    call = training.backward_only(torch.compile(naive, backend="aot_eager"), x, dy)  # torch checks it for each backend
    first = call.run()[0].clone()
    assert torch.equal(call.run()[0], first)
    params = training.leaves([torch.randn(3)])
    training.forward_backward(lambda: params[0] * 2, 1, params, accumulate=False)
    assert getattr(config, "donated_buffer", True)


@pytest.mark.gpu
def test_each_stream_has_a_forward_of_its_own_so_that_a_backward_can_be_captured():
    made = []
    x, dy = (torch.randn(1000, device="cuda") for _ in range(2))
    call = training.backward_only(lambda x: (made.append(torch.cuda.current_stream()), x**3)[1], x, dy)
    call.run()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call.run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        (dx,) = call.run()
    x += 1  # the backward reads what was saved, which is x itself
    graph.replay()
    torch.cuda.synchronize()
    assert made == [torch.cuda.default_stream(), side]
    assert torch.allclose(dx, 3 * x**2 * dy)


def test_a_compiled_backward_that_runs_again_is_kept_apart_from_one_that_runs_once():
    config = pytest.importorskip("torch.compiler.config")
    if not hasattr(config, "cache_key_tag"):
        pytest.skip("torch 2.6")
    before, tags = config.cache_key_tag, []
    config.cache_key_tag = "mine"
    try:
        for may in (True, False, False, True):
            training.let_backward_reuse_buffers(may)
            tags.append(config.cache_key_tag)
    finally:
        config.cache_key_tag = before
    assert tags[0] == tags[3] == "mine"
    assert tags[1] == tags[2] != "mine"
    assert tags[1].startswith("mine")
