"""The verdicts behind benchmarks/timer_spread, on series whose truth is known. No GPU."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton", reason="benchmarks/timer_spread needs the GPU's instruments to be importable")

from benchmarks.timer.timer_spread.process import CALLS, SPINS_US
from benchmarks.timer.timer_spread.series import (
    AGAIN,
    FIRST,
    LONGER_1,
    LONGER_2,
    METHODS,
    Arm,
    Process,
    judged,
    longer,
    spread,
)
from benchmarks.timer.timer_spread.tables import bars, report


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


def test_the_report_has_every_call_and_both_methods():
    text = report(synthetic(processes=3), seconds=12.0)
    for call in CALLS:
        assert f"| {call} |" in text
    assert text.count("PASS") + text.count("MISS") == 6
    assert "400 samples an arm" in text
