"""The bars and the table behind benchmarks/timer/equal_pairs.py, and one of its processes on a CPU."""

from __future__ import annotations

import pytest

from benchmarks.common import fields_of
from benchmarks.timer.equal_pairs import CALLS, SLOWED, Judged, bars, judge_all
from runner.measure.benchmark import Benchmark


def judged(different=0, missed=0, pairs=200, slowed=100):
    equal = [Judged("gelu 2^10", 0.0, "slower" if i < different else "same", 0.0, 0.01, 0.002) for i in range(pairs)]
    for share in (0.05, 0.20):
        words = ["unclear"] * missed + ["slower"] * (slowed - missed)
        equal += [Judged("gelu 2^10", share, word, share, 0.01, 0.002) for word in words]
    return equal


@pytest.mark.parametrize(
    ("loaded", "different", "missed", "expected"),
    [
        (False, 4, 5, ["PASS", "PASS"]),
        (False, 5, 6, ["MISS", "MISS"]),
        (True, 2, 20, ["PASS", "PASS"]),
        (True, 3, 21, ["MISS", "MISS"]),
    ],
)
def test_a_busy_machine_has_bars_of_its_own(loaded, different, missed, expected):
    assert [word for _, _, word in bars(judged(different, missed), loaded=loaded)] == expected


@pytest.mark.long
def test_a_process_judges_its_pairs():
    settings = Benchmark(**fields_of("measure", "benchmark") | {"measured_peak": False})
    found = list(judge_all(1, "cpu", settings, pairs=2, slowed=1))
    assert sorted(one.share for one in found) == [0.0, 0.0, 0.05, 0.20]
    assert {one.call for one in found} <= {*CALLS["cpu"], *SLOWED["cpu"]}
    assert all(one.word in ("faster", "slower", "same", "unclear", "") for one in found)
