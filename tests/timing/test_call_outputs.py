"""Looking at what a call gives, and at whether its inputs show in it."""

from __future__ import annotations

import pytest
import torch

from runner.timing import Call
from runner.timing.call import caches_results, spoil


def call(function, *inputs, reset=None):
    return Call(lambda: (function(*inputs),), inputs=inputs, reset=reset)


@pytest.mark.parametrize(
    ("function", "shape", "kept"),
    [
        (lambda x: x + 1, (3, 4), False),
        (lambda x: torch.softmax(x, 1), (3, 1), False),  # of one column: it is 1, whatever x
        (lambda x: x * 0, (3, 4), False),
        (lambda x: x.new_tensor([1.0, 2.0]), (3, 4), True),
        (lambda x: x.new_empty(0), (3, 4), False),
    ],
)
def test_inputs_show_in_what_is_computed_from_them_and_are_put_back(function, shape, kept):
    x = torch.randn(shape)
    was = x.clone()
    assert caches_results(call(function, x)) == kept
    assert torch.equal(x, was)


def test_one_input_that_shows_is_enough_and_integers_stay():
    index, x = torch.arange(3), torch.randn(3)
    assert not caches_results(call(lambda i, x: x[i], index, x))
    assert caches_results(call(lambda i, x: i * 1.0, index, x))
    assert not caches_results(call(lambda i: i * 1.0, index))  # there is nothing to change
    assert index.tolist() == [0, 1, 2]


def test_a_call_that_changes_its_inputs_finds_them_as_they_were():
    x = torch.randn(8)
    was = x.clone()
    assert not caches_results(call(lambda x: x.mul_(2), x, reset=lambda: x.copy_(was)))
    assert torch.equal(x, was)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_inputs_of_every_type_are_changed(dtype):
    x = torch.randn(8).to(dtype)
    assert not caches_results(call(lambda x: x.float(), x))


def test_where_memory_is_short_nothing_is_found():
    def short(x):
        raise torch.OutOfMemoryError

    assert not caches_results(call(short, torch.randn(8)))


def test_inputs_are_put_back_where_the_call_fails():
    x = torch.randn(8)
    was, calls = x.clone(), []

    def fails(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("it fails")
        return x + 1

    with pytest.raises(ValueError, match="it fails"):
        caches_results(call(fails, x))
    assert torch.equal(x, was)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_an_output_that_is_returned_again_is_spoilt(dtype):
    kept = torch.tensor([0, 1, 1]).to(dtype)
    right = kept.clone()
    spoil(call(lambda x: kept, torch.randn(3)))
    assert not torch.eq(kept, right).any()
