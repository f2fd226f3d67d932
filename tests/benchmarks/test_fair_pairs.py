"""The bars and tables behind benchmarks/fair_pairs.py, on pairs whose truth is known. No GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="benchmarks/fair_pairs.py needs the GPU's instruments to be importable")

from benchmarks.timer.fair_pairs import (
    EQUAL,
    LONGER,
    PEERS,
    Heard,
    Judged,
    Pair,
    Said,
    bars,
    judge,
    report,
)
from runner.timing.statistics import Ratio

SAME, APART, UNSURE = (0.0, 0.001), (0.02, 0.001), (0.0, 0.02)


def judged(call, us=20.0, said=SAME, shared=False):
    return Judged(call, us, Ratio(*said, freedom=9, paired=True), 0.1, shared)


def heard(call, method="do_bench", off=0.0, iqr=None):
    return Heard(call, method, Said(10.0, iqr), Said(10.0 * (1 + off), iqr), 0.5)


def equal(different=0, unsure=0, us=20.0, count=40):
    said = [APART] * different + [UNSURE] * unsure
    said += [SAME] * (count * len(EQUAL) - len(said))
    return [judged(call, us, said.pop()) for call in EQUAL for _ in range(count)]


def longer(missed=0, count=34):
    return {
        spin.name: [judged(spin.name, spin.us, SAME if place < missed else APART) for place in range(count)]
        for spin in LONGER
    }


def words(*arguments):
    return [word for _, _, word in bars(*arguments)]


def test_the_bars_are_kept_where_all_is_well():
    assert words(equal(), longer()) == ["PASS", "PASS", "PASS"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"different": 5}, ["PASS", "PASS", "PASS"]),  # of 280
        ({"different": 6}, ["MISS", "PASS", "PASS"]),
        ({"unsure": 28}, ["PASS", "PASS", "PASS"]),
        ({"unsure": 29}, ["PASS", "MISS", "PASS"]),
        ({"unsure": 280, "us": 7.0}, ["PASS", "MISS", "PASS"]),  # none is long enough: nothing has been shown
    ],
)
def test_equal_calls_that_are_told_apart_or_not_sure_miss_their_bar(changes, expected):
    assert words(equal(**changes), longer()) == expected


@pytest.mark.parametrize(("missed", "word"), [(1, "PASS"), (2, "MISS")])
def test_longer_calls_that_are_not_found_miss_their_bar(missed, word):
    assert words(equal(), longer(missed))[2] == word


def test_the_report_keeps_the_peers_spins_out_of_the_equal_calls():
    theirs = [heard(call, method) for call in EQUAL for method in PEERS for _ in range(6)]
    spins = [heard(spin.name, method, off=0.01) for spin in LONGER for method in PEERS for _ in range(6)]
    text = report(equal(), longer(), [*theirs, *spins], first_s=3.0)
    for name in [*EQUAL, *(spin.name for spin in LONGER)]:
        assert f"| {name}" in text
    assert "| do_bench | 42 | 0 of 42 | 0 of 42 |" in text
    assert "6 pairs of each call" in text


def test_ours_is_asked_as_a_sweep_asks_and_the_second_is_over_the_first():
    class Settings:
        def compare(self, calls, device):
            assert device == "cuda"
            return [
                (columns["instrument"], [call.run() * (1 + 1e-5 * n) for n in range(10)], 400)
                for call, columns in calls
            ]

    one = judge(Pair("a", lambda: 100.0, lambda: 102.0), Settings(), shared=True)
    assert one.ratio.word == "slower"
    assert one.ratio.log == pytest.approx(0.0198, abs=1e-4)
    assert one.us == pytest.approx(100.0, rel=1e-3)
    assert one.shared
