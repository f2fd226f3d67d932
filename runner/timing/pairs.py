"""Two calls → which is faster, by how much, and how sure that is. Works on batch means; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from runner.timing.statistics import LOOK_TWICE, T_975, Floor

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
        """Of so large a difference between calls that are within ``ZONE`` of each other; two-sided."""
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
