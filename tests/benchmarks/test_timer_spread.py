"""The verdicts behind benchmarks/timer_spread, on series whose truth is known. No GPU."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton", reason="benchmarks/timer_spread needs the GPU's instruments to be importable")

from benchmarks.timer.timer_spread.process import CALLS, CAPTURES, NULL, SPINS_US, sample
from benchmarks.timer.timer_spread.series import (
    AGAIN,
    FIRST,
    LONGER_1,
    LONGER_2,
    METHODS,
    PAIR_FLOORS,
    Arm,
    Process,
    apart,
    batches,
    covered,
    judged,
    keep,
    kept,
    longer,
    pair,
    spread,
)
from benchmarks.timer.timer_spread.tables import bars, report
from runner.timing.statistics import NO_FLOOR, Floor

STAMPS = PAIR_FLOORS["timestamps"]


def noise(chance, mean, sd=0.15, count=400):
    """Samples on the 32 ns steps of the GPU's timer."""
    return [0.032 * round(chance.gauss(mean, sd) / 0.032) for _ in range(count)]


def synthetic(processes=8, offset_ns=5.0, sd=0.15, longer_by=1.0, again_by=0.0):
    """Processes whose arms differ by an offset of their own; timestamps and events alike."""
    made = []
    for index in range(processes):
        chance = random.Random(index)

        def arm(mean, chance=chance):
            return noise(chance, mean + chance.gauss(0, offset_ns / 1e3), sd)

        series = {}
        for method in METHODS:
            for place, call in enumerate(CALLS):
                us = 4.0 + 3.0 * place
                series[Arm(call, FIRST, method)] = arm(us)
                series[Arm(call, AGAIN, method)] = arm(us * (1 + again_by))
                if call.startswith("spin"):
                    series[Arm(call, LONGER_1, method)] = arm(us * (1 + 0.01 * longer_by))
                    series[Arm(call, LONGER_2, method)] = arm(us * (1 + 0.02 * longer_by))
        head = {
            "constant_us": dict.fromkeys(METHODS, 0.5 + index / 1e3),
            "empty_kernel_us": 0.6,
            "setup_s": 1,
            "sampling_s": 2,
        }
        made.append(Process(head, series))
    return made


def words(processes):
    spreads = [spread(processes, call, "timestamps") for call in CALLS]
    found = [longer(processes, f"spin {us} us", role, "timestamps") for us in SPINS_US for role in (LONGER_1, LONGER_2)]
    return {promise: word for promise, _, word in bars(spreads, found)}


@pytest.mark.parametrize(
    ("log_ratio", "half", "word"),
    [
        (0.02, 0.002, "slower"),
        (-0.02, 0.002, "faster"),
        (0.008, 0.0029, "slower"),  # beyond the zone, though within 1 %
        (0.008, 0.0031, "unclear"),
        (0.003, 0.0069, "same"),
        (0.003, 0.0071, "unclear"),
        (0.0, 0.02, "unclear"),  # never the same for lack of data
    ],
)
def test_a_word_is_said_only_when_the_whole_interval_agrees(log_ratio, half, word):
    assert judged(log_ratio, half) == word


def test_equal_arms_are_called_the_same_and_hardly_ever_different():
    chance = random.Random(1)
    said = [pair(noise(chance, 10.0), noise(chance, 10.0), STAMPS).word for _ in range(200)]
    assert said.count("same") >= 195
    assert said.count("slower") + said.count("faster") == 0


def test_the_interval_of_a_pair_holds_its_ratio_in_about_95_percent():
    chance = random.Random(2)
    made = [pair(noise(chance, 10.0), noise(chance, 10.1), NO_FLOOR) for _ in range(400)]
    held = sum(abs(one.log_ratio - 0.00995) <= one.half for one in made)
    assert 0.92 * 400 <= held <= 0.99 * 400


@pytest.mark.parametrize(("more", "word"), [(1.01, "slower"), (0.99, "faster")])
def test_1_percent_is_found_at_17_us(more, word):
    chance = random.Random(3)
    said = [pair(noise(chance, 17.0), noise(chance, 17.0 * more), STAMPS).word for _ in range(100)]
    assert said.count(word) >= 95


def test_a_jump_in_one_arm_alone_widens_the_interval():
    chance = random.Random(4)
    steady, jumping = noise(chance, 10.0), noise(chance, 10.0, count=200) + noise(chance, 10.3, count=200)
    assert pair(steady, jumping, STAMPS).half > 3 * pair(steady, steady[::-1], STAMPS).half
    together = pair(jumping, [us * 1.02 for us in jumping], STAMPS)  # a jump of both is none of the ratio
    assert together.word == "slower"
    assert together.log_ratio == pytest.approx(0.0198, abs=1e-4)


def test_the_floor_keeps_short_calls_from_being_called():
    chance = random.Random(5)
    made = pair(noise(chance, 1.0, sd=0.001), noise(chance, 1.02, sd=0.001), PAIR_FLOORS["events"])
    assert made.word == "unclear"
    assert made.half > 0.05


def test_batches_are_consecutive_and_hold_every_sample():
    parts = batches(list(range(203)))
    assert [one for part in parts for one in part] == list(range(203))
    assert {len(part) for part in parts} == {20, 21}
    with pytest.raises(ValueError, match="do not make 10"):
        batches([1.0] * 9)


def test_processes_are_apart_beyond_1_percent():
    assert apart([10.0, 10.05, 10.2]) == [False, True, True]
    assert apart([7.0, 7.0]) == [False]


def test_coverage_counts_the_intervals_that_hold_the_value_of_all():
    chance = random.Random(6)
    quiet = [noise(chance, 10.0) for _ in range(15)]
    floor = Floor(0.010, 0.001)
    assert covered(quiet, floor) == [True] * 15
    assert covered([*quiet, noise(chance, 10.4)], floor)[-1] is False


def test_without_a_floor_an_offset_of_each_process_is_not_covered():
    chance = random.Random(7)
    series = [noise(chance, chance.gauss(10.0, 0.05)) for _ in range(40)]
    assert sum(covered(series, NO_FLOOR)) < 30
    assert sum(covered(series, Floor(0.05, 0.0))) >= 36


def test_quiet_processes_pass_every_bar():
    assert set(words(synthetic()).values()) == {"PASS"}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"offset_ns": 80.0}, "sd 40 ns or less below 30 us"),
        ({"offset_ns": 80.0}, "two processes within 1 % in 98 % of pairs or more"),
        ({"offset_ns": 80.0}, "coverage 93 to 100 %"),
        ({"longer_by": 0.2}, "+1 % of spin 450 us found in 95 % or more"),
        ({"longer_by": 0.2}, "+1 % of spin 17 us found in 95 % or more"),
        ({"longer_by": 0.2}, "+2 % of spin 5 us found in 95 % or more"),
    ],
)
def test_what_is_wrong_misses_its_bar(changes, missed):
    assert words(synthetic(**changes))[missed] == "MISS"


def test_the_spread_of_both_arms_is_that_between_processes():
    one = spread(synthetic(processes=60, offset_ns=20.0, sd=0.01), "matmul 1024", "events")
    assert one.sd_ns == pytest.approx(20.0, rel=0.25)
    assert len(one.pairs_apart) == 2 * 60 * 59 // 2
    assert one.covered == []  # intervals are the product's, and events here are a peer's


def test_the_report_has_every_call_and_both_methods():
    text = report(synthetic(processes=3), seconds=12.0)
    for call in CALLS:
        assert f"| {call} |" in text
    assert text.count("PASS") + text.count("MISS") == 6
    assert "400 samples an arm" in text


def test_what_a_process_keeps_comes_back(tmp_path):
    process = synthetic(processes=1)[0]
    path = tmp_path / "process-00.jsonl"
    keep(process, path)
    back = kept(path)
    assert back.head == process.head
    assert back.series.keys() == process.series.keys()
    arm = Arm("spin 5 us", LONGER_1, "timestamps")
    assert back.series[arm] == pytest.approx(process.series[arm], abs=1e-4)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_every_arm_is_sampled_once_a_round_in_an_order_drawn_anew():
    log = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def samples(self, count):
            log.append(self.name)
            return [10.0 + len(log)] * count

    arms = {Arm(name, FIRST, "timestamps"): Fake(name) for name in ("a", "b", "c", NULL)}
    series = sample(arms, 30, random.Random(0))
    rounds = [tuple(log[index : index + 4]) for index in range(0, len(log), 4)]
    assert all(sorted(one) == ["a", "b", "c", NULL] for one in rounds)
    assert len(set(rounds)) > 10
    assert {len(samples) for samples in series.values()} == {30 * CAPTURES}
    assert min(min(samples) for samples in series.values()) > 12  # what came before is warm-up
