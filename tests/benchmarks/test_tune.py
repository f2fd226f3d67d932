"""The bars behind benchmarks/timer/tune.py, and one of its processes on a CPU."""

from __future__ import annotations

import pytest

from benchmarks.common import fields_of
from benchmarks.timer.tune import PARTS, Tuned, report, tune
from runner.measure.benchmark import Benchmark

LOGS = {"a": 0.0, "b": -0.02, "c": 0.3}


def found(ours, left, peer, whole=0):
    return Tuned(ours, left, 400, 1.0, peer, 9000, 3.0, whole, LOGS if whole else {})


def test_the_loss_of_a_winner_is_by_the_processes_that_measured_all_in_full():
    text = report([found("b", ["b"], "c", whole=1000), found("a", ["a", "b"], "b"), found("a", ["a"], "b")], 9.0)
    assert (
        "| calls sampled in full (1,000) over those of the race in the same processes: 3 or more | 2.50 | MISS |"
        in text
    )
    assert "| the winner is left in every process, in 3 of 3 | 0 of 3 | MISS |" in text
    assert "| the fastest on average is left, in 3 of 3 | 2 of 3 | MISS |" in text
    assert "| race | 2 | 2 of 3 | 1.35 | 2.02 | 400 | 1.00 |" in text
    assert "| do_bench | 2 | 2 of 3 | 12.6 | 37.7 | 9,000 | 3.00 |" in text
    assert "| 1 | b | 1 | no | c | 400 | 1,000 |" in text
    assert "| 2 | a | 2 | no | b | 400 |  |" in text


def test_winners_that_no_process_left_out_are_as_good_as_one():
    text = report([found("b", ["b", "a"], "c", whole=1200), found("a", ["a", "b", "c"], "b")], 9.0)
    assert "| 3.00 | PASS |" in text
    assert "| the winner is left in every process, in 2 of 2 | 2 of 2 | PASS |" in text


@pytest.mark.long
def test_a_process_tunes_on_a_cpu():
    short = {"measured_peak": False, "max_s": 0.2}
    one = tune("cpu", Benchmark(**fields_of("measure", "benchmark") | short), 1)
    names = {f"parts of {size}" for size in PARTS}
    assert one.ours == one.left[0]
    assert {one.ours, one.peer, *one.left} <= names == one.over_first.keys()
    assert min(one.calls, one.peer_calls, one.whole_calls) > 0
