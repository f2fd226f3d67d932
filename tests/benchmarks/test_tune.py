"""The bars behind benchmarks/timer/tune.py, and one of its processes on a CPU."""

from __future__ import annotations

from benchmarks.common import fields_of
from benchmarks.timer.tune import PARTS, Tuned, report, tune
from runner.measure.benchmark import Benchmark

LOGS = {"a": 0.0, "b": -0.02, "c": 0.3}


def found(ours, left, peer, whole=0):
    return Tuned(ours, left, 400, 1.0, peer, 9000, 3.0, whole, LOGS if whole else {})


def test_the_loss_of_a_winner_is_by_the_processes_that_measured_all_in_full():
    text = report([found("b", ["b"], "c", whole=1000), found("a", ["a", "b"], "b"), found("a", ["a"], "b")], 9.0)
    assert "| calls sampled, of those of all 3 in full: 50 % or less | 40 % | PASS |" in text
    assert "| the fastest on average is among those left in 95 % | 2 of 3 | MISS |" in text
    assert "| halving, the fastest | 2 | 2 of 3 | 1.35 | 2.02 | 400 | 1.00 |" in text
    assert "| do_bench | 2 | 2 of 3 | 12.6 | 37.7 | 9,000 | 3.00 |" in text


def test_a_process_tunes_on_a_cpu():
    short = {"measured_peak": False, "max_s": 0.2}
    one = tune("cpu", Benchmark(**fields_of("measure", "benchmark") | short), 1)
    names = {f"parts of {size}" for size in PARTS}
    assert one.ours == one.left[0]
    assert {one.ours, one.peer, *one.left} <= names == one.over_first.keys()
    assert min(one.calls, one.peer_calls, one.whole_calls) > 0
