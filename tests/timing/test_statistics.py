"""What a summary says of single series; how often its interval holds the truth is in test_coverage.py."""

from __future__ import annotations

import random

import pytest

from runner.timing.statistics import Floor, summarise, trimmed_mean, von_neumann


def test_the_trimmed_mean_ignores_outliers():
    assert trimmed_mean([1.0] * 8 + [1000.0, -1000.0]) == 1.0
    assert trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 5.5


def test_quantiles_are_those_of_the_textbook():
    summary = summarise([6, 1, 2, 5, 4, 3])
    assert (summary.minimum, summary.q1, summary.median, summary.q3) == (1, 2.25, 3.5, 4.75)


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


def test_a_drift_is_given_as_a_share_from_the_middle_of_the_first_batch_to_that_of_the_last():
    assert summarise([100 + 0.02 * i for i in range(200)]).drift == pytest.approx(0.02 * 180 / 101.99)
    assert summarise([100 - 0.02 * i for i in range(200)]).drift == pytest.approx(-0.02 * 180 / 98.01)


def test_von_neumanns_ratio_is_two_for_alternation_free_noise_and_small_for_a_ramp():
    generator = random.Random(1)
    ratios = [von_neumann([generator.gauss(0, 1) for _ in range(10)]) for _ in range(2000)]
    assert sum(ratios) / len(ratios) == pytest.approx(20 / 9, rel=0.05)  # 2 n / (n - 1)
    assert von_neumann(list(range(10))) < 0.2


def test_a_floor_widens_an_interval_as_an_independent_error():
    assert Floor(us=0.0, share=0.0).widen(3.0, 100.0) == 3.0
    assert Floor(us=2.0, share=0.0).widen(3.0, 100.0) == 5.0
    assert Floor(us=0.0, share=0.02).widen(3.0, 100.0) == 5.0
