"""Confidence intervals of a time and of a ratio of two times.

Samples of a GPU kernel are not independent: clocks drift, two modes alternate, other processes come and go. An interval
that assumes independence contains the truth in 16 to 40 % of such series instead of 95 %. The means of ten consecutive
batches give 95 % (Law, *Simulation Modeling and Analysis*, ch. 9), if a batch is much longer than the correlation.
Otherwise coverage drops: to 60 % for 50 samples with an autocorrelation of 0.9.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, takewhile
from statistics import fmean, linear_regression, quantiles, stdev
from typing import Literal, TypeVar

T = TypeVar("T")

BATCHES = 10
TRIM = 0.2  # share cut at each end, against outliers; unlike a median, such a mean is not limited to timer ticks
LOOK_TWICE = 1.05  # widens each interval, since a second look after a first one costs about 5 % of the width
MIN_RATIO = 1.06  # von Neumann ratio of ten batches below which they trend: 2 % of quiet series, 12 of 13 drifts

FEWEST = 5  # samples, for a call that takes seconds; each is then a batch

# Quantiles of Student's t by degrees of freedom.
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
T_995 = {3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355}


def t_975(freedom: int) -> float:
    """Return the quantile of Student's t for a 95 % interval. Beyond 9 degrees of freedom, it is the quantile for 9."""
    return T_975[min(freedom, max(T_975))]


@dataclass(frozen=True)
class Summary:
    """Summary of a series, in the unit of its samples."""

    estimate: float  # trimmed mean
    low: float  # 95 % interval of the estimate, cut off at 0
    high: float
    median: float
    q1: float
    q3: float
    minimum: float
    count: int
    drift: float  # change over the series as a share of the estimate; 0 without a significant trend

    @property
    def half_width(self) -> float:
        """Half-width of the interval as a share of the estimate; infinite if the estimate is not above 0."""
        return (self.high - self.estimate) / self.estimate if self.estimate > 0 else math.inf


@dataclass(frozen=True)
class Floor:
    """Error of an instrument that more samples do not reduce: one standard deviation, absolute and relative."""

    us: float
    share: float

    def widen(self, half_us: float, estimate_us: float) -> float:
        """Return the half-width of the whole interval in us. ``half_us`` is the half-width from sampling."""
        return math.hypot(half_us, 2 * self.us, 2 * self.share * estimate_us)


NO_FLOOR = Floor(0.0, 0.0)


def trimmed_mean(samples: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest 20 % of ``samples``."""
    ordered = sorted(samples)
    cut = int(TRIM * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def faster_half_mean(samples: Sequence[float]) -> float:
    """Return the mean of the faster half of ``samples``."""
    return fmean(sorted(samples)[: (len(samples) + 1) // 2])


def summarise(samples: Sequence[float]) -> Summary:
    """Summarise ``samples``, given in the order they were taken. Raises ValueError for fewer than five."""
    if len(samples) < FEWEST:
        raise ValueError(f"{len(samples)} samples are too few: take at least {FEWEST}")
    ordered = sorted(samples)  # once: sorting takes nearly all of the time
    batches, estimate = batch_means(samples), trimmed_mean(ordered)
    residuals, freedom, slope = _detrended(batches)
    spread = math.sqrt(sum(r * r for r in residuals) / freedom)
    half = T_975[freedom] * spread / math.sqrt(len(batches)) * LOOK_TWICE
    q1, median, q3 = quantiles(ordered, n=4, method="inclusive")
    trends = von_neumann(batches) < MIN_RATIO and estimate > 0
    return Summary(
        estimate=estimate,
        low=max(0.0, estimate - half),
        high=estimate + half,
        median=median,
        q1=q1,
        q3=q3,
        minimum=ordered[0],
        count=len(samples),
        drift=slope * (len(batches) - 1) / estimate if trends else 0.0,
    )


def von_neumann(batches: Sequence[float]) -> float:
    """Return the mean squared difference of neighbors over the variance: about 2 for noise, near 0 for a trend."""
    mean = sum(batches) / len(batches)
    variance = sum((b - mean) ** 2 for b in batches)
    if variance == 0:
        return 2.0
    steps = sum((later - earlier) ** 2 for earlier, later in pairwise(batches))
    return steps / variance * len(batches) / (len(batches) - 1)


def batch_means(samples: Sequence[float]) -> list[float]:
    """Return the trimmed means of ten consecutive batches, or each sample if there are fewer than ten."""
    return [trimmed_mean(batch) for batch in consecutive(samples, min(BATCHES, len(samples)))]


def consecutive(samples: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Split ``samples`` into ``parts`` consecutive parts whose lengths differ by at most one."""
    edges = [len(samples) * i // parts for i in range(parts + 1)]
    return [samples[a:b] for a, b in pairwise(edges)]


def _detrended(batches: Sequence[float]) -> tuple[list[float], int, float]:
    """Return residuals of the line if its slope is significant (1 %), else of the mean; their freedom; the slope."""
    n, mean = len(batches), fmean(batches)
    slope, intercept = linear_regression(range(n), batches)
    line = [b - intercept - slope * i for i, b in enumerate(batches)]
    error = math.sqrt(sum(r * r for r in line) / (n - 2) / (n * (n * n - 1) / 12))
    if abs(slope) > T_995[n - 2] * error:
        return line, n - 2, slope
    return [b - mean for b in batches], n - 1, slope


Relation = Literal["faster", "slower", "same", "unclear"]

ZONE = 0.005  # a difference within this is never "faster" or "slower"
SAME = 0.01  # two times are the same if the whole interval of their ratio is within 1 %
MOST_SHARED = 0.9  # largest error of the instrument as a share of the shorter time, since a ratio needs the rest
LARGEST = 700.0  # logarithm of a factor that is still a number
LEVEL = 0.05  # probability that a table of equal calls contains a "faster" or "slower"


@dataclass(frozen=True)
class Ratio:
    """Natural logarithm of one time over another; below 0 if the first is faster."""

    log: float
    half: float  # logarithmic half-width of its 95 % interval; infinite above ``LARGEST``
    freedom: int  # degrees of freedom behind ``half``
    paired: bool  # whether both were sampled in paired rounds
    systematic: float = 0.0  # the part of ``half`` that neither more samples nor more processes reduce
    separate: float | None = None  # logarithm of the ratio of the separate times, if that contradicts this one

    def __post_init__(self) -> None:
        """Make a half-width infinite whose factor, or whose square, may be beyond all numbers."""
        if self.half > LARGEST:
            object.__setattr__(self, "half", math.inf)

    @property
    def sampling(self) -> float:
        """The part of ``half`` that more samples reduce."""
        return math.sqrt(max(0.0, self.half**2 - self.systematic**2))

    @property
    def word(self) -> Relation:
        """Conclusion for this pair alone. ``same`` means shown to be within 1 %; too little data gives ``unclear``."""
        if abs(self.log) - self.half > ZONE:
            return "slower" if self.log > 0 else "faster"
        return "same" if abs(self.log) + self.half < SAME else "unclear"

    @property
    def chance(self) -> float:
        """Two-sided p-value of the difference, if the true difference is ``ZONE``."""
        return self.chance_beyond(abs(self.log) - ZONE)

    def chance_beyond(self, beyond: float) -> float:
        """Two-sided p-value of a logarithm that is ``beyond`` a limit, if the true one is at the limit; 1 below it."""
        if beyond <= 0:
            return 1.0
        return 2 * survival(beyond / (self.half / T_975[self.freedom]), self.freedom) if self.half else 0.0


def paired(
    first: Sequence[float], second: Sequence[float], floors: tuple[Floor, Floor], shared_us: float = 0.0
) -> Ratio:
    """Return the ratio of two calls from their batch means in us, which are above 0 and taken in paired rounds.

    ``floors``: errors of both instruments. ``shared_us``: largest error that makes both times too long. It cancels in
    their difference, but not in their ratio.
    """
    logs, sampling = _logs(first, second)
    first_us, second_us = times_us = fmean(first), fmean(second)
    freedom, off_us = len(logs) - 1, min(shared_us, MOST_SHARED * min(times_us))
    shift = math.log((first_us - off_us) / (second_us - off_us)) - math.log(first_us / second_us)
    systematic = math.hypot(shift, *(floor.widen(0.0, us) / us for floor, us in zip(floors, times_us, strict=True)))
    return Ratio(fmean(logs), math.hypot(sampling, systematic), freedom, paired=True, systematic=systematic)


def widest(means: Sequence[Sequence[float]]) -> float:
    """Return the largest half-width from sampling of all ratios of two calls, from the batch means of each call.

    Without a ratio, if a mean is not above 0, it is 0.
    """
    if min(map(min, means)) <= 0:
        return 0.0
    return max((_logs(*pair)[1] for pair in combinations(means, 2)), default=0.0)


def _logs(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], float]:
    """Return the logarithm of the ratio in each batch, and the half-width of the interval of their mean."""
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    count, spread = len(logs), math.dist(logs, [fmean(logs)] * len(logs))  # stdev takes ten times as long
    return logs, T_975[count - 1] * spread / math.sqrt(count * (count - 1)) * LOOK_TWICE


def unpaired(first: tuple[float, float], second: tuple[float, float], *, apart: float = 0.0) -> Ratio:
    """Return the ratio of two separate times, each with the relative half-width of its whole interval.

    ``apart``: share by which two separate times of one call may differ. If infinite, there is no conclusion.
    """
    (first_time, first_half), (second_time, second_half) = first, second
    return Ratio(math.log(first_time / second_time), math.hypot(first_half, second_half, apart), 9, paired=False)


def pooled(ratios: Sequence[Ratio]) -> Ratio:
    """Combine the ratios of one pair from several processes. The systematic part is the same in each process."""
    if len(ratios) == 1:
        return ratios[0]
    logs, freedom = [ratio.log for ratio in ratios], min(len(ratios) - 1, max(T_975))
    between = T_975[freedom] * stdev(logs) / math.sqrt(len(logs))
    within = math.sqrt(fmean(ratio.sampling**2 for ratio in ratios) / len(ratios))
    if within >= between:
        freedom = max(freedom, *(ratio.freedom for ratio in ratios))
    systematic = min(ratio.systematic for ratio in ratios)
    half = math.hypot(max(between, within), systematic)
    return Ratio(fmean(logs), half, freedom, all(ratio.paired for ratio in ratios), systematic)


def words(ratios: Sequence[Ratio]) -> list[Relation]:
    """Return the conclusion of each pair of one table. A "faster" or "slower" has to be ``standing``."""
    stand = standing([ratio.chance for ratio in ratios])
    return [ratio.word if i in stand or ratio.word == "same" else "unclear" for i, ratio in enumerate(ratios)]


def standing(chances: Sequence[float]) -> set[int]:
    """Return the places of the p-values that stand among ``chances``, corrected for their number (Holm 1979).

    One stands if it is at most ``LEVEL`` over the number of those not yet accepted.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    accepted = takewhile(lambda ranked: chances[ranked[1]] * (len(chances) - ranked[0]) <= LEVEL, enumerate(order))
    return {place for _, place in accepted}


def beaten(over_fastest: Mapping[T, Ratio], level: float) -> set[T]:
    """Return the calls that are shown to be slower than the fastest.

    ``over_fastest``: the ratio of each call, including the fastest, to the fastest. The truly fastest call is among the
    result with a probability of at most ``level``: one of its comparisons with the others must be wrong, and each is
    wrong with a probability of ``level / (count - 1)`` (Bonferroni).
    """
    each = level / max(1, len(over_fastest) - 1)
    return {call for call, ratio in over_fastest.items() if ratio.log > 0 and ratio.chance / 2 <= each}


def survival(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t for t >= 0 (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for power in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    inside = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0)) if odd else sine * total
    return (1 - inside) / 2


# Standard deviation between 16 processes on an H200, rounded up.
FLOORS = {
    "graph_timestamps": Floor(us=0.010, share=0.001),
    # Reads 0.2 us more than graphs at 1 us, and 0.7 us more above 30 us.
    "stream_timestamps": Floor(us=0.4, share=0.001),
    "cuda_events": Floor(us=2.2, share=0.0015),  # reads 3.2 to 4.1 us more than a kernel lasts; nothing is subtracted
    "host_clock": Floor(us=0.5, share=0.001),
    "perf_counter": NO_FLOOR,
}

# For one side of a ratio from paired rounds, where errors that both sides share cancel.
PAIR_FLOORS = {
    "graph_timestamps": Floor(us=0.005, share=0.0003),
    "stream_timestamps": Floor(us=0.005, share=0.0003),
    "cuda_events": Floor(us=0.02, share=0.0005),
    "host_clock": Floor(us=0.5, share=0.001),
    "perf_counter": Floor(us=0.0, share=0.0015),  # 10 processes of equal_pairs, 2 cores of an AMD EPYC, 2026-11-24
}


def pair_floors(first: str, second: str) -> tuple[Floor, Floor]:
    """Return the floors of both sides of a ratio. Errors of two different instruments do not cancel."""
    floors = PAIR_FLOORS if first == second else FLOORS
    return floors[first], floors[second]


def shared_us(first: str, second: str) -> float:
    """Return the largest error in us that one instrument adds to both sides of a ratio; 0 for two instruments."""
    return FLOORS[first].widen(0.0, 0.0) if first == second else 0.0
