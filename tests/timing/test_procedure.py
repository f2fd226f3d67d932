"""Warm-up, sampling and the second look, with an instrument whose samples are known, and so is what each costs."""

from __future__ import annotations

import random
import time

import pytest

from runner.measure.benchmark import Benchmark
from runner.timing.cpu import PerfCounter
from runner.timing.instrument import Instrument
from runner.timing.procedure import Taken, take
from runner.timing.statistics import NO_FLOOR, Floor, Summary
from runner.timing.verdict import verdict


class Scripted(Instrument):
    """An instrument that gives one number after the other, at a cost of ``cost_s`` each, from ``slow_from`` on 1 s."""

    name = "scripted"

    early_us = ()

    def __init__(self, clock, sample, cost_s=1e-4, round_size=1, slow_from=10**9):
        self.clock, self.sample, self.cost_s, self.taken = clock, sample, cost_s, 0
        self.round_size, self.slow_from = round_size, slow_from

    def samples(self, count):
        self.clock.sleep(sum(1.0 if self.taken + i >= self.slow_from else self.cost_s for i in range(count)))
        self.taken += count
        return [self.sample(self.taken - count + i) for i in range(count)]


def settings(**changes):
    values = {"cold_l2": True, "instrument": "auto", "captures": 10, "buffer_sets": 5, "cupti_check": True}
    values |= {"warmup_s": 0.01, "samples": 200, "max_s": 0.5, "target_pct": 0.5, "target_cpu_pct": 2.0}
    values |= {"measured_peak": False, "paired_rounds": 40, "race": False, "sustained_s": 0.0, "keep_samples": False}
    return Benchmark(**(values | changes))


def test_quiet_samples_converge_at_the_first_look(clock):
    noise = random.Random(1)
    taken = take(Scripted(clock, lambda i: 100 + noise.gauss(0, 0.5)), settings())
    assert taken.summary.count == 200
    assert taken.converged
    assert taken.summary.estimate == pytest.approx(100, abs=0.2)


def test_noisy_samples_are_taken_once_more_and_then_left_as_they_are(clock):
    noise = random.Random(1)
    taken = take(Scripted(clock, lambda i: 100 + noise.gauss(0, 60)), settings())
    assert taken.summary.count > 2 * 200
    assert not taken.converged


def test_slow_calls_get_fewer_samples_and_stay_within_the_time(clock):
    taken = take(Scripted(clock, lambda i: 100.0, cost_s=0.02), settings(max_s=0.4))
    assert clock.now < 1.5 * 0.4
    assert 5 <= taken.summary.count <= 20


def test_very_slow_calls_get_five(clock):
    assert take(Scripted(clock, lambda i: 100.0, cost_s=0.1), settings(max_s=0.2)).summary.count == 5


@pytest.mark.parametrize("slow_from", [0, 3, 60, 110, 150, 400, 1000])
@pytest.mark.parametrize("noise_us", [0.1, 60.0])
def test_a_call_that_becomes_slow_takes_its_time_and_one_sample_more(clock, slow_from, noise_us):
    """The warm-up may last 0.2 s. Five samples are taken in any case: an interval needs them."""
    noise = random.Random(1)
    instrument = Scripted(clock, lambda i: 100 + noise.gauss(0, noise_us), slow_from=slow_from)
    taken = take(instrument, settings(warmup_s=0.01, samples=600, max_s=0.5))
    if taken.warmup_s < 0.2:
        assert clock.now <= taken.warmup_s + 0.5 + 1.0
    else:
        assert taken.warmup_s <= 0.2 + 1.0
        assert clock.now <= taken.warmup_s + 5.0


def test_a_real_function_that_becomes_slow_is_not_called_on_and_on():
    fast, calls = 2000, []

    def becomes_slow():
        calls.append(None)
        time.sleep(0.05 if len(calls) > fast else 0.00003)

    take(PerfCounter(becomes_slow), settings(warmup_s=0.01, samples=10**6, max_s=0.6, target_pct=1e-9))
    assert len(calls) - fast <= 0.6 / 0.05 + 1  # on a machine so busy that it never becomes slow, there are fewer


def test_an_instrument_is_asked_for_whole_rounds_and_for_less_only_if_a_round_takes_too_long(clock):
    asked = []

    class Rounds(Scripted):
        def samples(self, count):
            asked.append(count)
            return super().samples(count)

    assert take(Rounds(clock, lambda i: 100.0, round_size=20), settings()).summary.count == 200
    assert asked[-10:] == [20] * 10
    slow = take(Rounds(clock, lambda i: 100.0, cost_s=0.2, round_size=20), settings(warmup_s=0.0, max_s=0.5))
    assert (slow.summary.count, asked[-1]) == (5, 5)


def test_warm_up_goes_on_until_two_rounds_agree(clock):
    instrument = Scripted(clock, lambda i: 100.0 * (1 + max(0, 100 - i) / 100))  # settles after 100 samples
    assert take(instrument, settings(warmup_s=0.01)).summary.estimate == pytest.approx(100, abs=0.1)
    assert take(Scripted(clock, lambda i: 100.0), settings(warmup_s=0.05)).warmup_s >= 0.05


def test_a_series_that_drifts_is_taken_anew(clock):
    instrument = Scripted(clock, lambda i: 100 + 10 * max(0.0, 1 - i / 150))  # settles after 150 samples
    taken = take(instrument, settings())
    assert taken.converged
    assert taken.summary.estimate == pytest.approx(100, abs=0.01)


def test_a_series_that_goes_on_drifting_is_not_converged(clock):
    taken = take(Scripted(clock, lambda i: 100 + 0.05 * i), settings())
    assert not taken.converged
    assert taken.columns("wall_us", NO_FLOOR)["drift_pct"] > 0.5


def test_the_columns_hold_the_sampling_interval_and_the_whole_one(clock):
    noise = random.Random(1)
    taken = take(Scripted(clock, lambda i: 100 + noise.gauss(0, 0.5)), settings())
    columns = taken.columns("gpu_us", Floor(us=1.0, share=0.0))
    assert columns["stat_pct"] < 0.2
    assert columns["interval_pct"] == pytest.approx(2.0, abs=0.05)
    assert columns["high_us"] - columns["low_us"] == pytest.approx(
        2 * columns["interval_pct"] * columns["gpu_us"] / 100
    )


@pytest.mark.parametrize(("us", "noise_us"), [(-0.02, 0.02), (-0.02, 2.0), (0.01, 0.0)])
def test_a_call_that_reads_as_nothing_has_no_time_and_says_so(clock, us, noise_us):
    """What an instrument reads where nothing happens is taken off, so that half of the noise lies below 0."""
    noise = random.Random(1)
    taken = take(Scripted(clock, lambda i: us + noise.gauss(0, noise_us) - 0.01), settings())
    columns = taken.columns("gpu_us", Floor(us=0.01, share=0.001)) | {"instrument": "graph_timestamps"}
    assert not taken.converged
    assert columns["gpu_us"] == columns["low_us"] == 0 <= columns["high_us"]
    assert columns["stat_pct"] is columns["interval_pct"] is None
    assert verdict(columns, 0.5) == {
        "verdict": "timer_limited",
        "verdict_reason": "graph_timestamps cannot distinguish the call from an empty one",
    }


def test_an_interval_that_is_cut_off_at_0_is_as_wide_as_its_upper_half():
    wide = Summary(estimate=1.0, low=0.0, high=4.0, median=1, q1=1, q3=1, minimum=1, count=9, drift=0.0)
    assert Taken(wide, [1.0], 0.0, converged=False).columns("gpu_us", NO_FLOOR)["stat_pct"] == pytest.approx(300)
