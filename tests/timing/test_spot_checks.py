"""Outputs of calls at random among the timed ones are judged, through the timer that a run and ``bench`` use."""

from __future__ import annotations

import inspect
import random
import time
from dataclasses import replace

import pytest
import torch

from runner.timing import spot_checks
from runner.timing.call import Call
from runner.timing.settings import default_settings
from runner.timing.spot_checks import MOST, SpotChecks
from runner.timing.timer import Timer

TIMER = replace(default_settings(Timer), samples=100, max_s=0.1, warmup_s=0.005, paired_rounds=10)
X = torch.arange(64.0)


@pytest.fixture
def enough_time(monkeypatch):
    monkeypatch.setattr(spot_checks, "LEAST_S", 10.0)  # other processes may make the checks slow


def right():
    return (X + 1,)


def judge(outputs):
    return "" if torch.equal(outputs[0], X + 1) else "it is not x + 1"


def now_and_then(share, seed):
    """Wrong in one element, in a ``share`` of the calls."""
    chance = random.Random(seed)

    def function():
        y = X + 1
        if chance.random() < share:
            y[3] = 0
        return (y,)

    return function


def at_each(number):
    """Wrong at each ``number``-th call."""
    calls = 0

    def function():
        nonlocal calls
        calls += 1
        return (X + 1 if calls % number else X,)

    return function


def after(number):
    """Right in the first ``number`` calls."""
    calls = 0

    def function():
        nonlocal calls
        calls += 1
        return (X + 1 if calls <= number else X,)

    return function


def when_seen(*names):
    """Wrong where a function with one of these names calls it."""

    def function():
        callers = {frame.function for frame in inspect.stack(0)}
        return (X if callers & {*names} else X + 1,)

    return function


@pytest.mark.parametrize(
    "function", [now_and_then(0.5, 1), at_each(3), after(200), when_seen("samples", "_elapsed_ns"), when_seen("take")]
)
def test_a_call_that_is_wrong_only_while_it_is_timed_is_wrong(enough_time, function):
    columns, _ = TIMER.timed(Call(function, judge=judge), "cpu")
    assert (columns["verdict"], columns["verdict_reason"]) == ("wrong", "in the timed calls: it is not x + 1")


def test_twenty_outputs_of_a_right_call_are_judged(enough_time):
    columns, samples = TIMER.timed(Call(right, judge=judge), "cpu")
    assert columns["verdict"] != "wrong"
    assert columns["checked_calls"] in (MOST, MOST + 1)  # one is always made after the series
    assert len(samples) >= 5


def test_of_slow_calls_as_many_are_judged_as_a_tenth_of_the_time_allows():
    def slow():
        end = time.perf_counter() + 0.06
        while time.perf_counter() < end:
            pass
        return right()

    columns, _ = TIMER.timed(Call(slow, judge=judge), "cpu")
    assert columns["checked_calls"] == 1


def test_without_a_judge_nothing_is_called_or_said():
    checks = SpotChecks()
    checks.begin(1, 0.0)
    assert not checks.due()
    checks.judge(lambda: pytest.fail("it was called"))
    assert "checked_calls" not in TIMER.timed(Call(right), "cpu")[0]


def test_a_call_without_the_same_bits_each_time_may_be_right():
    def tolerant(outputs):
        return "" if torch.allclose(outputs[0], X + 1, atol=0.5) else "far off"

    columns, _ = TIMER.timed(Call(lambda: (X + 1 + 0.1 * torch.rand(64),), judge=tolerant), "cpu")
    assert columns["verdict"] != "wrong"


def test_outputs_of_the_paired_rounds_are_judged_too():
    calls = [(Call(function, judge=judge), {}) for function in (right, when_seen("paired_rounds"), right)]
    batches = replace(TIMER, max_s=60.0, target_cpu_pct=1e6).compare(calls, "cpu")  # ten rounds, if it is busy too
    assert batches is not None
    assert [batch.wrong for batch in batches] == ["", "it is not x + 1", ""]
    assert [len(batch.means_us) for batch in batches] == [10, 0, 10]


def test_a_call_that_changes_its_inputs_is_judged_as_it_leaves_them():
    x = torch.zeros(8)

    def in_place():
        return (x.add_(1),)

    def judged(outputs):
        return "" if torch.equal(outputs[0], torch.ones(8)) else "added more than once"

    columns, _ = TIMER.timed(Call(in_place, reset=x.zero_, judge=judged), "cpu")
    assert columns["verdict"] != "wrong"
