"""From samples to a number and how sure it is.

Samples of a GPU kernel are not independent: clocks drift, two modes alternate for a while, a neighbour comes
and goes. An interval that treats them as independent holds the truth in 16 to 40 % of such series instead of
95 %. Ten consecutive batches do hold it (batch means; Law, *Simulation Modeling and Analysis*, ch. 9), where the
memory of the series is well below a tenth of it: what lasts longer than a sample then differs between batches,
and so widens the interval. Where it is not, as of 50 samples that each owe nine tenths to the last, they hold 60 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

BATCHES = 10
TRIM = 0.2  # share cut at each end: outliers go, and unlike a median the mean is not stuck to the clock's ticks
LOOK_TWICE = 1.05  # sampling once more when the first look was too wide costs about 5 % of the width
MIN_RATIO = 1.06  # von Neumann ratio of ten batches below which they trend: 2 % of quiet series, 12 of 13 drifts

FEWEST = 5  # samples; a call of seconds gets no more, and each is then a batch of its own

# Quantiles of Student's t by degrees of freedom.
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
T_995 = {3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355}


@dataclass(frozen=True)
class Summary:
    """A series in the unit of its samples."""

    estimate: float  # mean without the 20 % at each end
    low: float  # 95 % interval of the estimate
    high: float
    median: float
    q1: float
    q3: float
    minimum: float
    count: int
    drift: float  # from the first batch to the last, as a share of the estimate; 0 where there is no trend beyond noise

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the estimate; infinite if that is not above 0."""
        return (self.high - self.estimate) / self.estimate if self.estimate > 0 else math.inf  # low is cut off at 0


@dataclass(frozen=True)
class Floor:
    """The error of an instrument that no number of samples shows: one standard deviation, absolute and relative."""

    us: float
    share: float

    def widen(self, half_us: float, estimate_us: float) -> float:
        """Half the whole interval, where sampling alone gives ``half_us``."""
        return math.hypot(half_us, 2 * self.us, 2 * self.share * estimate_us)


NO_FLOOR = Floor(0.0, 0.0)


def trimmed_mean(samples: Sequence[float]) -> float:
    """Mean of what is left when ``TRIM`` of the samples is cut at each end."""
    ordered = sorted(samples)
    cut = int(TRIM * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest of the ``ordered`` samples."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summarise(samples: Sequence[float]) -> Summary:
    """The summary of ``samples`` in the order they were taken. Raises ValueError if there are fewer than ``FEWEST``."""
    if len(samples) < FEWEST:
        raise ValueError(f"{len(samples)} samples are too few: take at least {FEWEST}")
    batches = batch_means(samples)
    residuals, freedom = _detrended(batches)
    spread = math.sqrt(sum(r * r for r in residuals) / freedom)
    half = T_975[freedom] * spread / math.sqrt(len(batches)) * LOOK_TWICE
    estimate, ordered = trimmed_mean(samples), sorted(samples)
    return Summary(
        estimate=estimate,
        low=max(0.0, estimate - half),
        high=estimate + half,
        median=quantile(ordered, 0.5),
        q1=quantile(ordered, 0.25),
        q3=quantile(ordered, 0.75),
        minimum=ordered[0],
        count=len(samples),
        drift=_slope(batches) * (len(batches) - 1) / estimate
        if von_neumann(batches) < MIN_RATIO and estimate > 0
        else 0.0,
    )


def von_neumann(batches: Sequence[float]) -> float:
    """Mean squared difference of neighbours over the variance: about 2 for noise, towards 0 for a trend."""
    mean = sum(batches) / len(batches)
    variance = sum((b - mean) ** 2 for b in batches)
    if variance == 0:
        return 2.0
    steps = sum((later - earlier) ** 2 for earlier, later in pairwise(batches))
    return steps / variance * len(batches) / (len(batches) - 1)


def batch_means(samples: Sequence[float]) -> list[float]:
    """Trimmed mean of each of ten batches, or of as many as there are samples."""
    return [trimmed_mean(batch) for batch in consecutive(samples, min(BATCHES, len(samples)))]


def consecutive(samples: Sequence[T], parts: int) -> list[Sequence[T]]:
    """``samples`` in ``parts`` of one length, to within one, in their order."""
    edges = [len(samples) * i // parts for i in range(parts + 1)]
    return [samples[a:b] for a, b in pairwise(edges)]


def _slope(values: Sequence[float]) -> float:
    """Of the line through ``values`` that leaves the least squares, per step."""
    centre = (len(values) - 1) / 2
    width = sum((i - centre) ** 2 for i in range(len(values)))
    return sum((i - centre) * value for i, value in enumerate(values)) / width


def _detrended(batches: Sequence[float]) -> tuple[list[float], int]:
    """Residuals and degrees of freedom: of a line where its slope is beyond doubt (1 %), else of the mean."""
    n = len(batches)
    mean, centre, slope = sum(batches) / n, (n - 1) / 2, _slope(batches)
    line = [b - mean - slope * (i - centre) for i, b in enumerate(batches)]
    width = sum((i - centre) ** 2 for i in range(n))
    error = math.sqrt(sum(r * r for r in line) / (n - 2) / width)
    if abs(slope) > T_995[n - 2] * error:
        return line, n - 2
    return [b - mean for b in batches], n - 1
