"""Time covered by intervals, and the gaps between them, in the unit of their starts and ends."""

from collections.abc import Iterator, Sequence
from typing import Any

Interval = Any  # with a start and an end


def covered(intervals: Sequence[Interval]) -> float:
    """Return the time covered by at least one of ``intervals``, which are sorted by start."""
    total, reached = 0.0, float("-inf")
    for interval in intervals:
        total += max(0.0, interval.end - max(interval.start, reached))
        reached = max(reached, interval.end)
    return total


def gaps(intervals: Sequence[Interval]) -> Iterator[tuple[Interval, Interval, float]]:
    """Yield each gap between ``intervals``, which are sorted by start: what ends before it, what begins, its length."""
    last: Interval = None
    for interval in intervals:
        if last and interval.start > last.end:
            yield last, interval, interval.start - last.end
        if not last or interval.end > last.end:
            last = interval


def whole(intervals: Sequence[Interval]) -> float:
    """Return the time from the first start to the last end; 0 without intervals."""
    ends = [interval.end for interval in intervals]
    return max(ends) - min(interval.start for interval in intervals) if ends else 0.0
