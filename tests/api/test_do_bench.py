"""``runner.do_bench`` in place of ``triton.testing.do_bench``."""

from __future__ import annotations

import inspect

import pytest
import torch

from runner import do_bench

X = torch.ones(100)


def relu():
    return torch.relu(X)


def test_it_has_the_arguments_of_tritons_and_refuses_others():
    testing = pytest.importorskip("triton.testing")
    theirs = inspect.signature(testing.do_bench).parameters
    ours = inspect.signature(do_bench).parameters
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
    for wrong in ("quantile", "fast_flush"):
        with pytest.raises(TypeError, match=wrong):
            do_bench(relu, rep=2, **{wrong: [0.5]})


def test_it_returns_milliseconds_as_asked(clock):
    def ten_us():
        clock.now += 10_000

    for mode in ("mean", "median", "min", "max"):
        assert do_bench(ten_us, rep=5, return_mode=mode) == pytest.approx(0.01)
    every = do_bench(ten_us, rep=5, return_mode="all")
    assert isinstance(every, list)
    assert every == pytest.approx([0.01] * len(every))
    with pytest.raises(ValueError, match="return_mode='best': give one of mean"):
        do_bench(ten_us, return_mode="best")
    with pytest.raises(ValueError, match="rep=-1: give milliseconds, at least 0"):
        do_bench(ten_us, rep=-1)


def test_quantiles_come_first_and_are_those_of_torch(clock):
    def timed(**options):
        lengths = iter(range(100, 10**6))

        def longer():
            clock.now += 1000 * next(lengths)

        return do_bench(longer, warmup=0, rep=50, **options)

    every, shares = torch.tensor(timed(return_mode="all")), (0.5, 0.2, 0.83)
    assert len(every) >= 5
    assert timed(quantiles=shares, return_mode="all") == pytest.approx(every.quantile(torch.tensor(shares)).tolist())
    assert timed(quantiles=[]) == []
    assert timed(quantiles=[1.0]) == pytest.approx(float(every.max()))


def test_gradients_are_dropped_before_each_call(brief):
    x = torch.ones(10, requires_grad=True)
    seen = []

    def backward():
        seen.append(x.grad is None)
        (2 * x).sum().backward()

    do_bench(backward, rep=2, grad_to_none=[x])
    assert all(seen[1:])
    assert x.grad.eq(2).all()


def test_the_first_call_comes_before_anything_else_and_raises_what_it_raises():
    class OutOfResources(Exception):
        pass

    def fails():
        raise OutOfResources

    with pytest.raises(OutOfResources):
        do_bench(fails)


@pytest.mark.gpu
def test_autotune_takes_it():
    triton = pytest.importorskip("triton")
    from runner.timing.gpu_kernels import spin

    asked = []

    def watched(fn, **options):
        asked.append(options)
        return do_bench(fn, **options)

    tuned = triton.autotune([triton.Config({}, num_warps=1), triton.Config({}, num_warps=2)], key=[], do_bench=watched)
    tuned(spin)[(1,)](10_000)
    assert len(asked) == 2
    assert set(asked[0]) == {"quantiles"}
