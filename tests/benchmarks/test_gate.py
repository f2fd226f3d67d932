"""The bars and the table behind benchmarks/runner/gate.py, and one of its processes on a CPU."""

from __future__ import annotations

import pytest

from benchmarks.common import fields_of
from benchmarks.runner.gate import Decision, bars, decide_all, report
from runner.findings.gate import FAIL, PASS, UNCLEAR
from runner.measure.benchmark import Benchmark


def decisions(shares, alarms=0, unclear=0, missed=0, count=200, slowed=100):
    codes = [FAIL] * alarms + [UNCLEAR] * unclear + [PASS] * (count - alarms - unclear)
    found = [Decision(0.0, code, found=False, measured=5, width=0.005, seconds=0.1) for code in codes]
    for share in shares:
        hits = [False] * missed + [True] * (slowed - missed)
        found += [Decision(share, FAIL if hit else UNCLEAR, hit, 7, 0.005, 0.3) for hit in hits]
    return found


@pytest.mark.parametrize(
    ("device", "some", "expected"),
    [
        ("cuda", decisions((0.03, 0.1), alarms=1, unclear=10), ["PASS"] * 4),
        ("cuda", decisions((0.03, 0.1), alarms=2, unclear=11, missed=6), ["MISS"] * 4),
        ("cuda", decisions((0.03, 0.1), missed=5), ["PASS", "PASS", "PASS", "MISS"]),
        ("cpu", decisions((0.3,), alarms=2, unclear=100, missed=20), ["PASS", "PASS"]),
        ("cpu", decisions((0.3,), alarms=3, missed=21), ["MISS", "MISS"]),
        ("cpu", decisions(()), ["PASS", "MISS"]),
    ],
)
def test_each_device_has_bars_of_its_own(device, some, expected):
    assert [word for _, _, word in bars(some, device)] == expected


def test_the_table_has_a_line_for_each_slowdown():
    text = report(decisions((0.3,), alarms=1, count=3, slowed=2), "cpu", processes=1, load=2, seconds=9.0)
    assert "| 0 % | 3 | 2 | 1 | 0 |  | 5.00 | 0.500 | 0.100 |" in text
    assert "| 30 % | 2 | 0 | 2 | 0 | 2 | 7.00 | 0.500 | 0.300 |" in text


@pytest.mark.long
def test_a_process_decides_its_share():
    settings = Benchmark(**fields_of("measure", "benchmark") | {"measured_peak": False, "max_s": 0.1})
    found = list(decide_all(1, "cpu", settings, decisions=1, slowed=1))
    assert sorted(one.share for one in found) == [0.0, 0.30]
    assert all(one.measured >= 5 for one in found)
