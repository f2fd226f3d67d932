"""Summaries against series whose truth is known."""

from __future__ import annotations

import math
import random

import pytest

from runner.measure.statistics import Floor, quantile, summarise, trimmed_mean, von_neumann


def test_the_trimmed_mean_ignores_outliers():
    assert trimmed_mean([1.0] * 8 + [1000.0, -1000.0]) == 1.0
    assert trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 5.5


def test_quantiles_are_those_of_the_textbook():
    assert quantile([1, 2, 3, 4, 5], 0.5) == 3
    assert quantile([1, 2, 3, 4], 0.25) == 1.75
    assert quantile([7], 0.75) == 7


def test_a_constant_series_is_certain():
    summary = summarise([3.0] * 100)
    assert (summary.low, summary.estimate, summary.high) == (3.0, 3.0, 3.0)
    assert summary.drift == 0


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="too few"):
        summarise([1.0] * 4)


@pytest.mark.parametrize("count", [5, 7, 10, 19, 200])
def test_any_number_of_samples_from_five_up_gives_an_interval(count):
    generator = random.Random(count)
    summary = summarise([generator.gauss(10, 1) for _ in range(count)])
    assert summary.low < summary.estimate < summary.high
    assert summary.count == count


def independent(generator, n):
    return [100 + generator.gauss(0, 1) for _ in range(n)]


def autocorrelated(generator, n, rho=0.5):
    value, series = 0.0, []
    for _ in range(n):
        value = rho * value + generator.gauss(0, math.sqrt(1 - rho * rho))
        series.append(100 + value)
    return series


def with_outliers(generator, n):
    return [100 + generator.gauss(0, 1) + (50 if generator.random() < 0.02 else 0) for _ in range(n)]


@pytest.mark.parametrize("make", [independent, autocorrelated, with_outliers], ids=lambda make: make.__name__)
def test_the_interval_holds_the_truth_in_93_to_98_of_100_series(make):
    """Nominal 95 %. The truth is the trimmed mean of a long series; 1000 series give +-0.7 points."""
    generator = random.Random(7)
    truth = trimmed_mean(make(generator, 200_000))
    series = 1000
    held = sum((s := summarise(make(generator, 200))).low <= truth <= s.high for _ in range(series))
    assert 93.0 <= 100 * held / series <= 98.0


def two_sticky_modes(generator, n):
    """100 or 104, changing every 20 samples on average."""
    mode, series = generator.choice([100, 104]), []
    for _ in range(n):
        if generator.random() < 1 / 20:
            mode = 204 - mode
        series.append(mode + generator.gauss(0, 0.3))
    return series


def test_batches_hold_the_truth_where_samples_taken_as_independent_miss_it():
    generator, truth, trials, batches, naive = random.Random(3), 102.0, 300, 0, 0
    for _ in range(trials):
        samples = two_sticky_modes(generator, 800)
        summary = summarise(samples)
        batches += summary.low <= truth <= summary.high
        mean = sum(samples) / len(samples)
        error = math.sqrt(sum((x - mean) ** 2 for x in samples) / (len(samples) - 1) / len(samples))
        naive += abs(mean - truth) <= 1.96 * error
    assert 100 * naive / trials < 60
    assert 100 * batches / trials > 88  # 91 to 92 in long simulations: the known exception to 93


def test_a_drift_is_found_and_noise_is_not():
    generator = random.Random(5)
    drift = summarise([100 + 0.02 * i + generator.gauss(0, 0.5) for i in range(200)]).drift
    assert drift == pytest.approx(0.02 * 180 / 102, rel=0.2)  # between the middles of the first and last batch
    quiet = sum(summarise(independent(generator, 200)).drift == 0 for _ in range(300))
    assert quiet >= 285  # the rule alarms falsely in about 2 of 100


def test_von_neumanns_ratio_is_two_for_alternation_free_noise_and_small_for_a_ramp():
    generator = random.Random(1)
    ratios = [von_neumann([generator.gauss(0, 1) for _ in range(10)]) for _ in range(2000)]
    assert sum(ratios) / len(ratios) == pytest.approx(20 / 9, rel=0.05)  # 2 n / (n - 1)
    assert von_neumann(list(range(10))) < 0.2


def test_a_floor_widens_an_interval_as_an_independent_error():
    assert Floor(us=0.0, share=0.0).widen(3.0, 100.0) == 3.0
    assert Floor(us=2.0, share=0.0).widen(3.0, 100.0) == 5.0
    assert Floor(us=0.0, share=0.02).widen(3.0, 100.0) == 5.0
