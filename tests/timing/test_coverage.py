"""How often the 95 % interval holds a truth that is known: of one summary, and of the whole procedure.

A rate here is of SERIES or TAKES series: one binomial error is 0.5 or 0.6 points at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from runner.timing import procedure, ranks
from runner.timing.instrument import Instrument
from runner.timing.statistics import Summary, summarise, trimmed_mean

SAMPLES = 800  # the default of conf/measure/benchmark.yaml, and so the first look of the procedure
SERIES, TAKES = 2000, 1200
COST_S, MAX_S = 1e-4, 0.6  # of one sample, and of all: 6000 samples can be had
LONGEST = 7000

Noise = Callable[[np.random.Generator, int, int], np.ndarray]


class Kind(NamedTuple):
    """A way to make series, around a line that rises by ``slope`` a sample."""

    noise: Noise
    slope: float = 0.0


def normal(random, series, length):
    return 100 + random.normal(0, 1, (series, length))


def skewed(random, series, length):
    return 100 + random.lognormal(0, 0.8, (series, length))


def outliers(random, series, length):
    return normal(random, series, length) + 50 * (random.random((series, length)) < 0.02)


def bimodal(random, series, length):
    return 100 + 4 * (random.random((series, length)) < 0.4) + random.normal(0, 0.3, (series, length))


def sticky_bimodal(random, series, length):
    """The mode changes every 20 samples on average."""
    changes = np.cumsum(random.random((series, length)) < 1 / 20, axis=1)
    mode = (random.integers(0, 2, (series, 1)) + changes) % 2
    return 100 + 4 * mode + random.normal(0, 0.3, (series, length))


def autoregressive(rho: float) -> Noise:
    def noise(random, series, length):
        values = random.normal(0, 1, (length, series))
        for i in range(1, length):
            values[i] = rho * values[i - 1] + math.sqrt(1 - rho * rho) * values[i]
        return 100 + values.T

    return noise


def ticks(random, series, length):
    """1.5 us read with a timer that steps by 32 ns, under noise of about one step."""
    return np.round(random.normal(1.5, 0.04, (series, length)) / 0.032) * 0.032


def periodic(random, series, length):
    """A sine of four periods in the first look, at a phase of its own in each series."""
    phase = np.arange(length) / 200 + random.random((series, 1))
    return 100 + np.sin(2 * np.pi * phase) + random.normal(0, 0.3, (series, length))


KINDS = {
    "normal": Kind(normal),
    "skewed": Kind(skewed),
    "outliers": Kind(outliers),
    "bimodal": Kind(bimodal),
    "sticky_bimodal": Kind(sticky_bimodal),
    "ar_0.5": Kind(autoregressive(0.5)),
    "ar_0.9": Kind(autoregressive(0.9)),
    "ar_0.98": Kind(autoregressive(0.98)),
    "drift_1_pct": Kind(normal, slope=1 / SAMPLES),
    "ticks": Kind(ticks),
    "periodic": Kind(periodic),
}

# Where 93 to 97 cannot be had from ten batches of 80, with the rates of 4000 and 5000 series.
EXCEPTIONS = {
    "sticky_bimodal": (87.5, 93.0),  # 90.5 and 90.1: a run is a quarter of a batch; 94.1 with twice the samples
    "ar_0.98": (82.5, 89.0),  # 86.1 and 85.7: the memory is longer than a batch; 92.4 with twice the samples
    "periodic": (99.5, 100.0),  # 100: a sine cancels in the estimate, and not in the batches
}
REGULAR = sorted(KINDS.keys() - EXCEPTIONS.keys())
INDEPENDENT = ["normal", "skewed", "outliers", "bimodal", "ticks"]


class Shot(NamedTuple):
    """What came of the series of a kind, each of ``SAMPLES``."""

    truth: float
    summaries: list[Summary]
    naive_rate: float  # of mean ± 1.96 standard errors, as if the samples were independent


@cache
def shot(name: str) -> Shot:
    kind = KINDS[name]
    noise = kind.noise(np.random.default_rng(1), SERIES, SAMPLES)
    middle = kind.slope * (SAMPLES - 1) / 2
    series = noise + kind.slope * np.arange(SAMPLES)
    error = series.std(axis=1, ddof=1) / math.sqrt(SAMPLES)
    naive = np.abs(series.mean(axis=1) - noise.mean() - middle) <= 1.96 * error
    return Shot(trimmed(noise) + middle, [summarise(row) for row in series.tolist()], 100 * float(naive.mean()))


def trimmed(noise: np.ndarray) -> float:
    """The mean of all series together, near enough to the truth for each of them."""
    ordered = np.sort(noise, axis=None)
    cut = len(ordered) // 5
    return float(ordered[cut:-cut].mean())


def share(flags: list[bool]) -> float:
    return 100 * sum(flags) / len(flags)


def held(name: str) -> float:
    truth, summaries, _ = shot(name)
    return share([s.low <= truth <= s.high for s in summaries])


def test_the_truth_of_all_series_is_the_trimmed_mean_that_the_runner_takes():
    noise = normal(np.random.default_rng(1), 20, 50)
    assert trimmed(noise) == pytest.approx(trimmed_mean(noise.ravel().tolist()))


@pytest.mark.parametrize("name", REGULAR)
def test_an_interval_holds_the_truth_in_93_to_97_of_100_series(name):
    assert 93.0 <= held(name) <= 97.0


@pytest.mark.parametrize(("name", "least", "most"), [(name, *rates) for name, rates in EXCEPTIONS.items()])
def test_the_exceptions_are_no_worse_and_no_better_than_said(name, least, most):
    assert least <= held(name) <= most


@pytest.mark.parametrize(
    ("name", "most"), [("sticky_bimodal", 45.0), ("ar_0.5", 78.0), ("ar_0.9", 39.0), ("ar_0.98", 20.0)]
)
def test_an_interval_for_independent_samples_misses_what_batches_hold(name, most):
    assert shot(name).naive_rate <= most
    assert held(name) >= shot(name).naive_rate + 15


@pytest.mark.parametrize("name", INDEPENDENT)
def test_three_of_100_series_without_trend_are_said_to_drift(name):
    alarms = share([s.drift != 0 for s in shot(name).summaries])
    assert 1.5 <= alarms <= 4.0


def test_a_drift_of_one_percent_is_found_with_its_size():
    drifts = [s.drift for s in shot("drift_1_pct").summaries]
    assert share([d != 0 for d in drifts]) >= 99.0
    assert np.median(drifts) == pytest.approx(0.009, rel=0.05)  # between the middles of first and last batch


class MadeUp(Instrument):
    """Gives one series from its start; a sample takes time on the ``clock`` alone."""

    name, round_size = "made up", 20

    early_us = ()

    def __init__(self, series: np.ndarray, clock: SimpleNamespace) -> None:
        self.series, self.clock, self.given = series, clock, 0

    def samples(self, count: int) -> list[float]:
        assert self.given + count <= len(self.series)
        self.clock.now += count * COST_S
        self.given += count
        return self.series[self.given - count : self.given].tolist()


class Takes(NamedTuple):
    """Shares of the takes of one kind, in percent."""

    held: float
    extended: float
    converged: float


@pytest.fixture(scope="module")
def takes() -> Iterator[Callable[[str], Takes]]:
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now

    @cache
    def of(name: str) -> Takes:
        kind, held, extended, converged = KINDS[name], [], [], []
        # The interval that half of the first looks reach: where stopping at a look that is narrow by luck costs most.
        target = 100 * float(np.median([s.half_width for s in shot(name).summaries]))
        settings = SimpleNamespace(samples=SAMPLES, warmup_s=0.02, max_s=MAX_S, target_pct=target)
        noise = kind.noise(np.random.default_rng(2), TAKES, LONGEST)
        centre = trimmed(noise)
        for series in noise + kind.slope * np.arange(LONGEST):
            instrument = MadeUp(series, clock)
            taken = procedure.take(instrument, settings)
            summary = taken.summary
            truth = centre + kind.slope * (instrument.given - (summary.count + 1) / 2)
            held.append(summary.low <= truth <= summary.high)
            extended.append(summary.count > SAMPLES)
            converged.append(taken.converged)
        return Takes(share(held), share(extended), share(converged))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "time", clock)
        yield of


SHORT = ("normal", "drift_1_pct", "ar_0.98")  # seconds each: the others are long tests


def some_long(*cases: tuple[object, ...]) -> list[object]:
    return [pytest.param(*case, marks=() if case[0] in SHORT else pytest.mark.long) for case in cases]


@pytest.mark.parametrize("name", some_long(*((name,) for name in REGULAR)))
def test_warm_up_redo_and_extension_leave_93_to_97_of_100(takes, name):
    """Widened by one binomial error: AR(0.9) is at 93.3 in 5000 takes, the others at 94.5 to 94.9."""
    assert 92.4 <= takes(name).held <= 97.6


@pytest.mark.parametrize(("name", "least", "most"), some_long(*((name, *rates) for name, rates in EXCEPTIONS.items())))
def test_the_exceptions_of_the_procedure_are_those_of_its_summaries(takes, name, least, most):
    assert least <= takes(name).held <= most


@pytest.mark.parametrize("name", some_long(*((name,) for name in sorted(KINDS))))
def test_these_rates_include_looking_twice_in_about_half_of_the_takes(takes, name):
    assert 40 <= takes(name).extended <= 60


@pytest.mark.parametrize("name", some_long(*((name,) for name in sorted(KINDS.keys() - {"drift_1_pct", "ar_0.98"}))))
def test_what_has_no_trend_converges_after_one_extension(takes, name):
    assert takes(name).converged >= 95


def test_a_drift_without_end_is_never_said_to_have_converged(takes):
    assert takes("drift_1_pct").converged == 0


def test_a_memory_longer_than_a_batch_is_taken_for_a_drift_in_one_of_eight(takes):
    assert 82 <= takes("ar_0.98").converged <= 92  # 87 in 5000 takes
