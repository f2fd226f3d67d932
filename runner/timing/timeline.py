"""What stretches of time cover, and what they leave open between them. In the unit of their starts and ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol


class Stretch(Protocol):
    """Anything that begins and ends."""

    @property
    def start(self) -> float:
        """When it begins."""

    @property
    def end(self) -> float:
        """When it ends."""


def covered(stretches: Sequence[Stretch]) -> float:
    """Time covered by at least one of ``stretches``, which are sorted by start."""
    total, reached = 0.0, float("-inf")
    for stretch in stretches:
        total += max(0.0, stretch.end - max(stretch.start, reached))
        reached = max(reached, stretch.end)
    return total


def gaps(stretches: Sequence[Stretch]) -> Iterator[float]:
    """Lengths of the times between them in which there is none; they are sorted by start."""
    reached = stretches[0].end if stretches else 0.0
    for stretch in stretches:
        if stretch.start > reached:
            yield stretch.start - reached
        reached = max(reached, stretch.end)


def whole(stretches: Sequence[Stretch]) -> float:
    """From the first start to the last end: what is covered, and the gaps."""
    return max(stretch.end for stretch in stretches) - min(stretch.start for stretch in stretches)
