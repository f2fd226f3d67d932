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
from statistics import fmean, stdev
from typing import Literal, TypeVar

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
    """Return the slope of the least-squares line through ``values``, per step."""
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


Word = Literal["faster", "slower", "same", "unclear"]

ZONE = 0.005  # a difference within half a percent is not worth a word
SAME = 0.01  # two times are the same if their whole interval is within 1 %
MOST_SHARED = 0.9  # of the shorter time may be an instrument's error: something is left to take the ratio of
LEVEL = 0.05  # chance that a table of equal calls has a "faster" or "slower" in it


@dataclass(frozen=True)
class Ratio:
    """One time over another, as a natural logarithm: below 0, the first is faster."""

    log: float
    half: float  # of its 95 % interval, logarithmic
    freedom: int  # degrees of freedom behind ``half``
    paired: bool  # sampled in the same rounds, not one after the other
    unseen: float = 0.0  # of ``half``, what neither more samples nor more processes would take away

    @property
    def word(self) -> Word:
        """What may be said of this pair alone; "same" is never said for want of data."""
        if abs(self.log) - self.half > ZONE:
            return "slower" if self.log > 0 else "faster"
        return "same" if abs(self.log) + self.half < SAME else "unclear"

    @property
    def chance(self) -> float:
        """Two-sided p-value of the difference, if the true one is within ``ZONE``."""
        beyond = abs(self.log) - ZONE
        if beyond <= 0:
            return 1.0
        return 2 * survival(beyond / (self.half / T_975[self.freedom]), self.freedom) if self.half else 0.0


def paired(
    first: Sequence[float], second: Sequence[float], floors: tuple[Floor, Floor], shared_us: float = 0.0
) -> Ratio:
    """From batch means of both, above 0, that were taken at the same times; and what their instruments cannot see.

    ``shared_us``: how much too long, at most, both may have been read. Alike for both, it is gone from their
    difference, but not from their ratio.
    """
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    one_us, other_us = times_us = fmean(first), fmean(second)
    freedom, off_us = len(logs) - 1, min(shared_us, MOST_SHARED * min(times_us))
    sampling = T_975[freedom] * stdev(logs) / math.sqrt(len(logs)) * LOOK_TWICE
    shift = math.log((one_us - off_us) / (other_us - off_us)) - math.log(one_us / other_us)
    unseen = math.hypot(shift, *(floor.widen(0.0, us) / us for floor, us in zip(floors, times_us, strict=True)))
    return Ratio(fmean(logs), math.hypot(sampling, unseen), freedom, paired=True, unseen=unseen)


def unpaired(first: tuple[float, float], second: tuple[float, float]) -> Ratio:
    """From two times that were taken one after the other, each with half its whole interval, as a share of it."""
    (one, one_half), (other, other_half) = first, second
    return Ratio(math.log(one / other), math.hypot(one_half, other_half), 9, paired=False)


def pooled(ratios: Sequence[Ratio]) -> Ratio:
    """The same pair in several processes: their mean, and the interval that the processes themselves show.

    That is no narrower than what all of them leave ``unseen``: it is the same in each.
    """
    if len(ratios) == 1:
        return ratios[0]
    logs, freedom = [ratio.log for ratio in ratios], min(len(ratios) - 1, max(T_975))
    between = T_975[freedom] * stdev(logs) / math.sqrt(len(logs))
    within = math.sqrt(fmean(ratio.half**2 - ratio.unseen**2 for ratio in ratios) / len(ratios))
    if within >= between:
        freedom = max(freedom, *(ratio.freedom for ratio in ratios))
    unseen = min(ratio.unseen for ratio in ratios)
    half = math.hypot(max(between, within), unseen)
    return Ratio(fmean(logs), half, freedom, all(ratio.paired for ratio in ratios), unseen)


def words(ratios: Sequence[Ratio]) -> list[Word]:
    """What may be said of each pair of one table: of many, some differ by chance (Holm 1979).

    A "faster" or "slower" stands if its chance, times the number of those not yet accepted, is below ``LEVEL``.
    """
    said: list[Word] = [ratio.word for ratio in ratios]
    order = sorted(range(len(ratios)), key=lambda index: ratios[index].chance)
    standing = True
    for place, index in enumerate(order):
        standing = standing and ratios[index].chance * (len(ratios) - place) <= LEVEL
        if not standing and said[index] in ("faster", "slower"):
            said[index] = "unclear"
    return said


def survival(t: float, freedom: int) -> float:
    """P(T > t) of Student's t for a t of 0 or more (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for power in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    inside = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0)) if odd else sine * total
    return (1 - inside) / 2


# Standard deviation between 16 processes on an H200, rounded up: what one process cannot see of its own error.
FLOORS = {
    "graph_timestamps": Floor(us=0.010, share=0.001),
    "stream_timestamps": Floor(us=0.4, share=0.001),  # reads 0.2 us more than graphs at 1 us, and 0.7 from 30 us on
    # Reads 3.2 to 4.1 us more than a kernel lasts, and nothing is taken off.
    "cuda_events": Floor(us=2.2, share=0.0015),
    "host_clock": Floor(us=0.5, share=0.001),
    "perf_counter": NO_FLOOR,
}

# Of each side of a ratio, when both were sampled in the same rounds: what moves both alike is gone.
PAIR_FLOORS = {
    "graph_timestamps": Floor(us=0.005, share=0.0003),
    "stream_timestamps": Floor(us=0.005, share=0.0003),
    "cuda_events": Floor(us=0.02, share=0.0005),
    "host_clock": Floor(us=0.5, share=0.001),
    "perf_counter": NO_FLOOR,
}


def pair_floors(first: str, second: str) -> tuple[Floor, Floor]:
    """Return the floors of both sides of a ratio. Errors of two different instruments do not cancel."""
    floors = PAIR_FLOORS if first == second else FLOORS
    return floors[first], floors[second]


def shared_us(first: str, second: str) -> float:
    """By how much, at most, one instrument may have read both sides of a ratio too long; 0 of two instruments."""
    return FLOORS[first].widen(0.0, 0.0) if first == second else 0.0
