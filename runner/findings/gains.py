"""How many times as fast one case is as another of its problem, in words that agree with the table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..records.figures import times
from ..timing.statistics import SAME, Ratio
from .lines import OPPOSITE, Line
from .ratios import apart, inverse
from .validity import contended

VAGUE = 10.0  # of an interval from a tenth to ten times the ratio, only the nearer end is told


def gain(slower: Line, faster: Line, lines: Sequence[Line]) -> str:
    """Return how many times as fast the second line is as the first: ``1.30x as fast (1.29x to 1.31x)``."""
    ratio, word = compared(slower, faster, lines)
    if word == "same":
        return "the same time within 1 %"
    return ratio_text(ratio.log, ratio.half).replace("x", "x as fast", 1) if word == "slower" else "not told apart"


def compared(slower: Line, faster: Line, lines: Sequence[Line]) -> tuple[Ratio, str | None]:
    """Return the time of the first line over that of the second, with its word in the table if it has one there."""
    if faster.winner and slower.behind:
        return slower.behind, slower.vs_winner
    if faster.baseline and slower.ratio:
        return slower.ratio, slower.vs_baseline
    if slower.baseline and faster.ratio:
        return inverse(faster.ratio), OPPOSITE.get(faster.vs_baseline or "")
    (log, half), (other, around) = over_baseline(slower, lines), over_baseline(faster, lines)
    ratio = Ratio(log - other, math.hypot(half, around), freedom=9, paired=False)
    same = abs(ratio.log) + ratio.half < SAME
    return ratio, "same" if same else "slower" if ratio.log > ratio.half else "unclear"


def over_baseline(line: Line, lines: Sequence[Line]) -> tuple[float, float]:
    """Return the logarithm of the time, over the baseline's if all ``lines`` have such a ratio, and its half-width."""
    if all(each.ratio or each.baseline for each in lines):
        return (line.ratio.log, line.ratio.half) if line.ratio else (0.0, 0.0)
    percent = line.value("interval_pct")
    return math.log(line.time_us or 1.0), math.inf if percent is None else widened(line, percent / 100)


def widened(line: Line, half: float) -> float:
    """Return ``half``, of the interval of a time of ``line``, with what contention may have made of it."""
    return math.hypot(half, apart(line.row)) if contended(line.row) else half


def ratio_text(log: float, half: float | None) -> str:
    """Return a ratio with its 95 % interval, both of which are given as logarithms."""
    text = times(math.exp(log))
    if half is None:
        return text
    if half > math.log(VAGUE):
        end = f"at {'least' if log > 0 else 'most'} {times(math.exp(log - math.copysign(half, log)))}"
        return end if abs(log) > half else "not told apart"
    return f"{text} ({times(math.exp(log - half))} to {times(math.exp(log + half))})"
