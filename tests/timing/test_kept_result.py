"""Whether a call computes its result each time."""

from __future__ import annotations

import pytest
import torch

from runner.timing.call import Call
from runner.timing.kept_result import kept_result


def call(function, *inputs, reset=None, reference=None):
    def judge(outputs):
        return "" if torch.equal(outputs[0], (reference or function)(*inputs)) else "wrong"

    return Call(lambda: (function(*inputs),), inputs=inputs, reset=reset, judge_anew=judge)


def softmax(x):
    return torch.softmax(x.abs(), -1) * x if x.is_complex() else torch.softmax(x, -1)


def remembers(key):
    """Return a function that computes once for each ``key(x)``, and then returns a copy of that."""
    known = {}

    def function(x):
        if key(x) not in known:
            known[key(x)] = softmax(x)
        return known[key(x)].clone()

    return function


@pytest.mark.parametrize("key", [id, torch.Tensor.data_ptr, lambda x: x._version, lambda x: x.shape, lambda x: 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_a_result_that_is_remembered_by_the_tensor_and_not_its_values_is_found(key, dtype):
    x = torch.randn(3, 4).to(dtype)
    was, version = x.clone(), x._version
    assert kept_result(call(remembers(key), x, reference=softmax))
    assert torch.equal(x, was)
    assert x._version == version


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x + 1, (3, 4)),
        (lambda x: torch.softmax(x, 1), (3, 1)),  # of one column: it is 1, whatever x
        (lambda x: x * 0, (3, 4)),
        (lambda x: torch.ones(x.shape).triu(), (4, 4)),  # a mask, of the shape alone
        (lambda x: x.new_empty(0), (3, 4)),
        (lambda x: x / x.norm(), (1,)),
    ],
)
def test_a_result_that_does_not_depend_on_the_values_is_right(function, shape):
    x = torch.randn(shape).abs()
    was = x.clone()
    assert not kept_result(call(function, x))
    assert torch.equal(x, was)


def test_one_input_that_shows_is_enough_and_integers_stay():
    index, x = torch.arange(3), torch.randn(3)
    assert not kept_result(call(lambda i, x: x[i], index, x))
    assert kept_result(call(lambda i, x: i * 1.0, index, x, reference=lambda i, x: x[i]))
    assert not kept_result(call(lambda i: i * 1.0, index, reference=lambda i: i * 2.0))  # there is nothing to change
    assert index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("key", [lambda x, w: w.sum().item(), lambda x, w: (w.sum().item(), id(x))])
def test_what_is_kept_for_the_values_of_another_input_is_found(key, whole):
    known = {}

    def function(x, w, bias):
        kept = known.setdefault(key(x, w), x @ w + bias if whole else x @ w)
        return kept.clone() if whole else kept + bias

    kept = call(function, torch.randn(3, 4), torch.randn(4, 5), torch.randn(5), reference=lambda x, w, b: x @ w + b)
    assert kept_result(kept) == "the outputs did not change with the input of shape (3, 4)"


def test_weights_that_are_laid_out_once_are_no_kept_result():
    known = {}
    laid_out = call(
        lambda x, w: x @ known.setdefault(id(w), w.t().contiguous()).t(), torch.randn(3, 4), torch.randn(4, 5)
    )
    assert not kept_result(laid_out)


def test_an_input_after_many_weights_is_also_changed_alone():
    weights, x, known = [torch.nn.Parameter(torch.randn(4)) for _ in range(9)], torch.randn(4), {}

    def function(*inputs):
        *weights, x = inputs
        return known.setdefault(weights[0].sum().item(), x.exp().clone()) + sum(weights)

    kept = call(function, *weights, x, reference=lambda *inputs: inputs[-1].exp() + sum(inputs[:-1]))
    assert kept_result(kept) == "the outputs did not change with the input of shape (4,)"


def test_an_input_that_is_not_read_is_not_kept():
    x, weight = torch.randn(4, 4), torch.ones(4)
    assert not kept_result(call(lambda x, weight: x + 0, x, weight, reference=torch.mul))


def test_inputs_beside_an_expanded_one_are_put_back():
    x, bias = torch.randn(3, 4), torch.randn(1, 4).expand(3, 4)
    was = x.clone(), bias.clone()
    assert not kept_result(call(torch.add, bias, x))
    assert kept_result(call(lambda bias, x: was[0], bias, x, reference=torch.add))
    assert torch.equal(x, was[0])
    assert torch.equal(bias, was[1])


def test_a_call_that_changes_its_inputs_is_judged_by_what_it_was_given():
    x = torch.rand(4)
    was = x.clone()
    in_place = call(lambda x: x.add_(1)[1:2].clone(), x, reset=lambda: x.copy_(was), reference=lambda x: x[1:2] + 1)
    assert not any(kept_result(in_place) for _ in range(20))  # three of four times, the few values do not show


def test_a_call_that_changes_its_inputs_finds_them_as_they_were():
    x = torch.randn(8)
    was = x.clone()
    assert not kept_result(call(lambda x: x.mul_(2), x, reset=lambda: x.copy_(was)))
    assert torch.equal(x, was)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_inputs_of_every_type_are_changed(dtype):
    x = torch.randn(8).to(dtype)
    assert not kept_result(call(lambda x: x.float(), x))


def test_where_memory_is_short_nothing_is_found():
    def short(x):
        raise torch.OutOfMemoryError

    assert not kept_result(call(short, torch.randn(8)))


def test_inputs_are_put_back_where_the_call_fails():
    x = torch.randn(8)
    was, calls = x.clone(), []

    def fails(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("it fails")
        return x + 1

    assert not kept_result(call(fails, x))
    assert torch.equal(x, was)


def keeps(key, copy):
    """Return a function that keeps a result for each content of its input, as far as ``key`` reads it."""
    known = {}

    def function(x):
        if key(x) not in known:
            known[key(x)] = softmax(x)
        return known[key(x)].clone() if copy else known[key(x)]

    return function


def all_numbers(x):
    return tuple(x.flatten().tolist())


def eight_numbers(x):
    return tuple(x.flatten()[:: x.numel() // 8][:8].tolist())


@pytest.mark.parametrize(("key", "copy"), [(all_numbers, False), (eight_numbers, False), (eight_numbers, True)])
def test_a_result_that_is_kept_for_the_numbers_of_the_input_is_found(key, copy):
    torch.manual_seed(0)
    x = torch.randn(16, 64)
    was, function = x.clone(), keeps(key, copy)
    found = (kept_result(call(function, x, reference=lambda x: torch.softmax(x, -1))) for _ in range(3))
    assert any(found)  # one in 128 times, the element that changes is one of the eight
    assert torch.equal(x, was)
    assert torch.equal(function(x), torch.softmax(x, -1))  # what it keeps is as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_kept_table_that_does_not_depend_on_the_inputs_is_right_and_stays_as_it_was(dtype):
    kept = torch.tensor([0, 1, 1]).to(dtype)
    right = kept.clone()
    assert not kept_result(call(lambda x: kept, torch.randn(3), reference=lambda x: right))
    assert torch.equal(kept, right)


def test_a_kept_table_beside_a_computed_output_is_right():
    x, table = torch.randn(8), torch.ones(8)

    def judge(outputs):
        return "" if torch.equal(outputs[0], x + 1) and torch.equal(outputs[1], torch.ones(8)) else "wrong"

    assert not kept_result(Call(lambda: (x + 1, table), inputs=(x,), judge_anew=judge))


def test_a_kept_output_beside_a_computed_one_is_found():
    x, known = torch.randn(8), {}

    def judge(outputs):
        return "" if torch.equal(outputs[0], x + 1) and torch.equal(outputs[1], x * 2) else "wrong"

    assert kept_result(Call(lambda: (x + 1, known.setdefault(0, x * 2)), inputs=(x,), judge_anew=judge))


def test_of_integers_alone_only_a_tensor_that_is_returned_again_is_found():
    index, known = torch.arange(8), {}
    assert kept_result(call(lambda i: known.setdefault(0, i * 2), index, reference=lambda i: i * 2))
    assert not kept_result(call(lambda i: i * 2, index))


def test_an_empty_input_does_not_end_the_look():
    x, empty, known = torch.randn(16, 64), torch.empty(0), {}

    def function(x, empty):
        return known.setdefault(eight_numbers(x), torch.softmax(x, -1)).clone()

    expected = call(function, x, empty, reference=lambda x, empty: torch.softmax(x, -1))
    assert any(kept_result(expected) for _ in range(3))
