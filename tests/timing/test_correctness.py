"""Outputs against what was expected."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from runner.models.workload import Expected
from runner.subject.tolerance import Judge
from runner.timing import correctness as check
from runner.timing.call import Call
from runner.timing.unwritten import BYTE


def expected(value, atol=0.1, rtol=0.0, name="y"):
    return Expected(name, torch.tensor(value, dtype=torch.float64), atol, rtol, f"{atol} + {rtol}|r|")


def compare(output, wanted):
    return check.check_outputs([torch.tensor(output, dtype=torch.float32)], [wanted], torch.float32)


def test_errors_are_measured_and_allowed():
    result = compare([1.0, 2.05], expected([1.0, 2.0]))
    assert result.correct
    assert result.max_abs_err == pytest.approx(0.05, rel=1e-5)
    assert result.max_rel_err == pytest.approx(0.025, rel=1e-5)
    assert result.err_over_tol == pytest.approx(0.5, rel=1e-5)


def test_many_errors_within_the_tolerance_are_wrong_if_their_rms_is_limited():
    wanted = replace(expected([1.0, 2.0]), rms=0.25)
    assert compare([1.02, 2.01], wanted).correct
    result = compare([1.05, 1.95], wanted)
    assert result.reason == "y: the rms of all errors is 2 times what rounding explains"
    assert result.err_over_tol == pytest.approx(2, rel=1e-5)
    assert compare([1.05, 9.0], wanted).reason.startswith("y: 1 of 2 elements wrong")


def test_the_worst_place_is_named():
    result = compare([[1.0, 2.0], [3.0, 9.0]], expected([[1.0, 2.0], [3.0, 4.0]]))
    assert result.reason == "y: 1 of 4 elements wrong, worst at (1, 1): got 9, want 4"


def test_a_relative_tolerance_grows_with_the_value():
    assert compare([1010.0], expected([1000.0], atol=0.0, rtol=0.011)).correct
    assert not compare([1010.0], expected([1000.0], atol=0.0, rtol=0.009)).correct


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_equal_infinities_and_nans_agree(value):
    assert compare([value, 1.0], expected([value, 1.0])).correct


@pytest.mark.parametrize(("got", "want"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, -math.inf)])
def test_a_value_in_place_of_nan_or_infinity_is_wrong(got, want):
    found = compare([got], expected([want], rtol=0.5))
    assert not found.correct
    assert found.err_over_tol == found.max_abs_err == math.inf
    assert json.dumps(found.columns(), allow_nan=False)  # a row is a line of JSON, which has no infinity


def test_a_tolerance_per_element_holds_per_element():
    wanted = Expected("y", torch.zeros(2, dtype=torch.float64), torch.tensor([0.1, 1.0], dtype=torch.float64), 0.0, "")
    assert check.check_outputs([torch.tensor([0.05, 0.5])], [wanted], torch.float32).correct
    assert not check.check_outputs([torch.tensor([0.5, 0.5])], [wanted], torch.float32).correct


class Lazy(torch.Tensor):
    """May compute what it stands for when it is looked at, and so after it has been timed."""


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (torch.zeros(2).as_subclass(Lazy), "a Lazy where a tensor is expected"),
        (torch.zeros(3), r"shape \(3,\) where the reference has \(2,\)"),
        (torch.zeros(2, dtype=torch.float64), "dtype torch.float64 where torch.float32"),
        (torch.zeros(2, device="meta"), "on device meta where cpu is expected"),
        (torch.zeros(2).to_sparse(), "layout torch.sparse_coo where torch.strided is expected"),
        ([0.0, 0.0], "a list where a tensor is expected"),
        (None, ": None where a tensor is expected"),
    ],
)
def test_another_shape_or_type_is_wrong(output, what):
    result = check.check_outputs([output], [expected([0.0, 0.0])], torch.float32)
    assert not result.correct
    assert __import__("re").search(what, result.reason)
    assert set(result.columns()) == {"correct", "tolerance"}  # an error of 0 would be that of a perfect one


def test_a_missing_output_is_wrong():
    result = check.check_outputs([torch.zeros(1)], [expected([0.0])] * 2, torch.float32)
    assert "1 outputs where the reference has 2" in result.reason
    assert "err_over_tol" not in result.columns()


def test_comparing_in_parts_finds_the_error_in_any_of_them(monkeypatch):
    monkeypatch.setattr(check, "CHUNK", 4)
    for place in (0, 3, 4, 9):
        output = torch.zeros(10)
        output[place] = 1.0
        result = check.check_outputs([output], [expected([0.0] * 10)], torch.float32)
        assert f"worst at ({place},)" in result.reason


def test_an_empty_output_is_right():
    assert check.check_outputs([torch.zeros(0)], [expected([])], torch.float32).correct


def test_a_call_that_gives_other_bits_is_seen():
    def noisy():
        return (torch.rand(8),)

    fixed = torch.tensor([1.0, math.nan])
    assert check.repeats(Call(run=lambda: (fixed,)), (fixed,))
    assert not check.repeats(Call(run=noisy), noisy())


@pytest.mark.parametrize(
    ("one", "two", "same"), [(math.nan, math.nan, True), (math.nan, 0.0, False), (0.0, -0.0, False), (1.0, 1.0, True)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_are_the_same_bits(one, two, same, dtype):
    first, second = (torch.full((4, 6), value, dtype=dtype).t()[::2] for value in (one, two))
    assert check.repeats(Call(run=lambda: (second,)), (first,)) is same


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_elements_with_a_stride_have_bits(count):
    few = torch.arange(1.0, 5.0)[::2][:count]
    assert check.repeats(Call(run=lambda: (few,)), (few,))
    assert check.same_bits(few, few.clone())
    assert check.same_bits(few, few + 1) is (count == 0)


def test_a_call_that_overwrites_its_output_is_compared_with_what_it_was():
    output, count = torch.zeros(2), iter(range(9))
    call = Call(run=lambda: (output.fill_(float(next(count))),))
    assert not check.repeats(call, call.run())


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch.ops.aten, "gt"), (torch.ops.aten.max, "dim"), (torch.ops.aten, "sub"), (math, "prod"), (torch, "equal")],
)
def test_a_function_that_a_case_replaces_is_not_the_one_that_checks(monkeypatch, owner, name):
    x = torch.randn(64, 8)
    judge = Judge(torch.exp, (x,))
    monkeypatch.setattr(owner, name, lambda *_, **__: torch.zeros(()))
    assert not compare([1.0, 3.0], expected([1.0, 2.0])).correct
    assert not judge.check(x.exp() * 1.1).correct
    assert not check.same_bits(x, x + 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((..., slice(3, None)), "8 of 20 elements wrong, all in [:, 3:5], worst at (0, 3)"),
        ((2, slice(1, 3)), "2 of 20 elements wrong, all in [2, 1:3], worst at (2, 1)"),
        (..., "20 of 20 elements wrong, worst at (0, 0)"),
    ],
)
def test_the_block_of_all_wrong_elements_is_named(wrong, said):
    output = torch.zeros(4, 5)
    output[wrong] = 9
    assert compare(output.tolist(), expected([[0.0] * 5] * 4)).reason == f"y: {said}: got 9, want 0"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_an_element_that_was_not_written_is_called_so(dtype):
    output = torch.zeros(4, dtype=getattr(torch, dtype))
    output[3:].view(torch.uint8).fill_(BYTE)
    wanted = replace(expected([0.0] * 4), dtype=dtype)
    reason = check.check_outputs([output], [wanted], torch.float32).reason
    assert reason.startswith("y: 1 of 4 elements wrong, worst at (3,): got -")
    assert reason.endswith(" (unwritten), want 0")
