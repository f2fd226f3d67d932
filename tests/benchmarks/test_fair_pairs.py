"""The bars and tables behind benchmarks/fair_pairs.py, on pairs whose truth is known. No GPU."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
    by_peers,
    equal_pairs,
    equal_table,
    judge,
    judge_longer,
    longer_table,
    reader_table,
    report,
)
from benchmarks.timer.peers import defaults
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


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


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


def test_short_calls_need_not_be_called_the_same():
    assert words([*equal(), *equal(unsure=280, us=2.0)], longer()) == ["PASS", "PASS", "PASS"]


@pytest.mark.parametrize(("missed", "word"), [(1, "PASS"), (2, "MISS")])
def test_longer_calls_that_are_not_found_miss_their_bar(missed, word):
    assert words(equal(), longer(missed))[2] == word


def test_only_the_promised_spins_count():
    found = longer()
    for spin in LONGER:
        if not spin.promised:
            found[spin.name] = [judged(spin.name, said=SAME)] * 34
    assert words(equal(), found)[2] == "PASS"
    assert [spin.name for spin in LONGER if spin.promised] == ["spin 5 us +2 %", "spin 17 us +1 %", "spin 450 us +1 %"]


def test_a_line_of_equal_calls_has_ours_by_words_and_the_peers_by_percentiles():
    own = [judged("a", 10.0, SAME)] * 18 + [judged("a", 10.0, APART), judged("a", 10.0, UNSURE)]
    theirs = [heard("a", off=0.03), heard("a", off=-0.03), heard("b", off=0.5)]
    line = cells(equal_table(own, theirs), "a")
    assert line[1:6] == ["10.0", "20", "18", "1", "1"]
    assert line[-3:] == ["3.00", "", ""]  # the other peers had no pair of it


def test_what_is_barely_told_alone_is_not_told_in_a_table_of_many():
    line = cells(equal_table([judged("a", said=(0.0145, 0.009))] + [judged("a")] * 199, []), "a")
    assert line[5:7] == ["1", "0"]


def test_a_reader_takes_numbers_that_are_off_for_different():
    offs = [0.0, 0.004, -0.006, 0.02]
    theirs = [heard("a", "Timer", off, iqr=0.05) for off in offs] + [heard("a", "do_bench", off) for off in offs]
    own = [judged("a", said=(off, 0.001), shared=off > 0.001) for off in offs]
    text = reader_table(own, theirs)
    assert cells(text, "Timer")[1:4] == ["4", "2 of 4", "1 of 4"]
    assert cells(text, "Timer")[5] == "2 of 4"
    assert cells(text, "do_bench")[5] == ""
    assert cells(text, "ours")[1:4] == ["4", "2 of 4", "1 of 4"]
    assert cells(text, "ours, the pairs that the peers had")[1] == "2"
    assert "do_bench_cudagraph" not in text  # it had none


def test_a_line_of_a_longer_spin_has_what_every_method_reads():
    name = "spin 17 us +1 %"
    text = longer_table(longer(missed=4), [heard(name, off=0.012), heard(name, off=0.002), heard(name, off=-0.02)])
    assert cells(text, f"{name} (bar)") == [
        *(f"{name} (bar)", "30 of 34", "30 of 34", "0.100"),
        *("+2.00 %, 30 of 34", "+0.20 %, 1 of 3", "", ""),
    ]


def test_the_report_keeps_the_peers_spins_out_of_the_equal_calls():
    theirs = [heard(call, method) for call in EQUAL for method in PEERS for _ in range(6)]
    spins = [heard(spin.name, method, off=0.01) for spin in LONGER for method in PEERS for _ in range(6)]
    text = report(equal(), longer(), [*theirs, *spins], first_s=3.0)
    for name in [*EQUAL, *(spin.name for spin in LONGER)]:
        assert f"| {name}" in text
    assert "| do_bench | 42 | 0 of 42 | 0 of 42 |" in text
    assert "6 pairs of each call" in text


def test_every_pair_has_a_call_of_its_own_and_both_sides_share_it():
    class Clutter:
        stirred = 0

        def stir(self):
            self.stirred += 1

    clutter = Clutter()
    made = {name: (lambda name=name: lambda: name) for name in ("gelu 2^18", "gelu 2^20", "matmul")}
    found = list(equal_pairs(4, 2, clutter, made))
    assert [one.call for one in found].count("gelu 2^20") == 4
    assert [one.call for one in found].count("matmul") == 2
    assert [one.call for one in found[:3]] == list(made)  # in turn
    assert all(one.first is one.second for one in found)
    assert len({id(one.first) for one in found}) == clutter.stirred == 10


def test_peers_are_asked_about_both_sides_in_either_order():
    asked = []
    peers = {"peer": lambda call: asked.append(call()) or Said(float(call()))}
    chance = random.Random(0)
    found = [one for _ in range(20) for one in by_peers(Pair("a", lambda: 10, lambda: 11), chance, peers)]
    assert all(one.off == pytest.approx(0.1) for one in found)
    assert 1 < sum(first == 10 for first in asked[::2]) < 19


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


def test_without_time_for_rounds_there_is_no_word():
    class Settings:
        def compare(self, calls, device):
            return None

    with pytest.raises(RuntimeError, match="no time for rounds"):
        judge(Pair("a", int, int), Settings(), shared=False)


def test_only_long_spins_are_sampled_for_less_than_by_default():
    @dataclass(frozen=True)
    class Settings:
        max_s: float = defaults().max_s

        def compare(self, calls, device):
            limits.add(self.max_s)
            return [("graph_timestamps", [10.0 + 1e-4 * n for n in range(10)], 400) for _ in calls]

    for spin in LONGER:
        limits = set()
        found = judge_longer(spin, 5, [Pair(spin.name, int, int)] * 2, Settings())
        assert [one.shared for one in found] == [True, True, False, False, False]
        assert limits == {0.15 if spin.us > 100 else defaults().max_s}
