"""Workers that end or hang where rows have been written already."""

from __future__ import annotations

import pytest

from runner.launch import Ready
from runner.rounds import Rounds
from runner.row import Row

USER = """
import os, sys, time, torch

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")

def in_rounds():
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_name == "side_by_side": return True
    return False

def dies(x):
    if in_rounds(): os._exit(3)
    return right(x)
def hangs(x):
    if in_rounds(): time.sleep(1000)
    return right(x)
def fails(x):
    if in_rounds(): raise ValueError("not again")
    return right(x)
"""


@pytest.fixture
def launch(launch_user):
    """Events of a grid of the functions above, without Started."""
    return lambda *cases, **limits: launch_user(USER, *cases, **limits)


def kinds(events):
    return [type(event) for event in events]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dies", "not compared side by side: the worker exited with code 3"),
        ("hangs", "not compared side by side: no end of phase compare within 3 s; raise launcher.measure_limit_s"),
        ("fails", "ValueError: not again"),
    ],
)
def test_a_comparison_that_fails_costs_no_row_and_the_grid_goes_on(launch, name, reason):
    limits = {"measure_limit_s": 3} if name == "hangs" else {}
    events = launch(("right", 64), (name, 64), ("right", 32), **limits)
    rows = [event for event in events if isinstance(event, Row)]
    (rounds,) = (event for event in events if isinstance(event, Rounds))
    assert [row.status for row in rows] == ["ok"] * 3
    assert reason in rounds.reason
    assert not rounds.batches_us


def test_each_point_is_compared_when_its_cases_are_done(launch):
    events = launch(("right", 64), ("fails", 64), ("right", 32))
    assert kinds(events) == [Ready, Row, Row, Rounds, Row]


def test_each_replica_has_a_process_of_its_own(launch):
    events = launch(("right", 64, 0), ("right", 32, 0), ("right", 64, 1), ("right", 32, 1))
    assert kinds(events) == [Ready, Row, Row, Ready, Row, Row]
