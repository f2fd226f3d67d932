"""The procedure of measure=benchmark, with an instrument whose samples are known."""

from __future__ import annotations

import random
import time

import pytest

from runner.measure.benchmark import Benchmark

SETTINGS = {"cold_l2": True, "warmup_s": 0.0, "samples": 200, "max_s": 0.5, "target_pct": 0.5}


class Scripted:
    """An instrument that gives one number after the other, at a cost of ``cost_s`` each."""

    def __init__(self, sample, cost_s=1e-4):
        self.sample, self.cost_s, self.taken = sample, cost_s, 0

    def samples(self, count):
        time.sleep(count * self.cost_s)
        self.taken += count
        return [self.sample(self.taken - count + i) for i in range(count)]

    def columns(self):
        return {"instrument": "perf_counter", "calls_per_sample": 1}


@pytest.fixture
def measured(monkeypatch):
    def go(instrument, **changes):
        benchmark = Benchmark(**(SETTINGS | changes))
        monkeypatch.setattr(Benchmark, "_instrument", lambda self, call, device: instrument)
        return benchmark.measure(lambda: None, "cpu")

    return go


def test_quiet_samples_converge_at_the_first_look(measured):
    noise = random.Random(1)
    result = measured(Scripted(lambda i: 100 + noise.gauss(0, 0.5)))
    assert result["samples"] == 200
    assert result["converged"] is True
    assert "verdict" not in result
    assert result["low_us"] < 100 < result["high_us"]
    assert result["wall_us"] == pytest.approx(100, abs=0.2)


def test_noisy_samples_are_taken_once_more_and_then_reported_as_they_are(measured):
    noise = random.Random(1)
    result = measured(Scripted(lambda i: 100 + noise.gauss(0, 60)))
    assert result["samples"] > 200
    assert result["converged"] is False
    assert result["verdict"] == "not_converged"
    assert "interval" in result["verdict_reason"]


def test_slow_calls_get_fewer_samples_and_stay_within_the_time(measured):
    instrument = Scripted(lambda i: 100.0, cost_s=0.02)
    started = time.perf_counter()
    result = measured(instrument, max_s=0.4)
    assert time.perf_counter() - started < 2 * 0.4
    assert 5 <= result["samples"] <= 20


def test_very_slow_calls_get_five(measured):
    assert measured(Scripted(lambda i: 100.0, cost_s=0.1), max_s=0.2)["samples"] == 5


def test_warm_up_goes_on_until_two_rounds_agree(measured):
    instrument = Scripted(lambda i: 100.0 * (1 + max(0, 100 - i) / 100))
    measured(instrument, warmup_s=0.01)
    assert instrument.taken > 100 + 200
    assert measured(Scripted(lambda i: 100.0), warmup_s=0.05)["warmup_s"] >= 0.05


def test_a_drift_is_said(measured):
    result = measured(Scripted(lambda i: 100 + 0.05 * i))
    assert result["converged"] is False
    assert "drifts" in result["verdict_reason"]
