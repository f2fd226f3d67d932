"""Series: a case on one kind of device over past runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..measure.columns import column_of
from ..records.case import CaseRecord
from ..records.columns import Column
from ..records.row import Row
from .validity import certain, verdict

TIME = "time_us"

Source = Literal["replicas", "verify", "runs of one commit"]


@dataclass(frozen=True)
class Point:
    """The case in one run."""

    run: str  # ``<date>/<time>-<name>``
    rows: Sequence[Row]  # of its replicas
    row: Row  # the replicas merged into one
    commit: str  # short, ``*`` behind it if its files differed; "" if it is not known
    value: float | None
    percent: float | None  # half the width of the value's 95 % interval, relative to it

    @property
    def when(self) -> str:
        """Date and time: ``2025-01-31 12:00:05``."""
        date, _, rest = self.run.partition("/")
        return f"{date} {rest[:8].replace('-', ':')}"

    @cached_property
    def log(self) -> float | None:
        """The logarithm of the value; None where it cannot be judged."""
        return math.log(self.value) if self.value and self.value > 0 and not self.doubt else None

    @cached_property
    def doubt(self) -> str:
        """Why the value cannot be judged, ``quick`` or the verdict; "" if it can."""
        if self.quick:
            return "quick"
        return "" if self.row.status == "ok" and certain(self.row) else verdict(self.row)

    @property
    def quick(self) -> bool:
        """Whether it was measured under ``quick=true``. It stands in the series, but no change is taken from it."""
        return self.row.case.settings.quick

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Half the width of its interval and what ``verify`` says, as shares; infinite if that is not known."""
        apart = [row.metrics.get("separate_pct") for row in self.rows]
        known = [float(percent) / 100 for percent in apart if percent is not None]
        return (self.percent or 0.0) / 100, max(known) if len(known) == len(apart) else math.inf


@dataclass(frozen=True)
class ChangePoint:
    """A point at which a series has a lasting change."""

    place: int  # of the first point of the new level
    factor: float  # the median from there on over the median before, each up to the next change
    source: Source
    also: str  # what else is different at that point


@dataclass(frozen=True)
class Series:
    """The same case on one kind of device, the oldest run first."""

    case: CaseRecord  # of the newest run
    device: str
    column: str
    points: Sequence[Point]
    changes: Sequence[ChangePoint] = ()
    note: str = ""  # why no change can be marked

    @cached_property
    def word(self) -> Column:
        """Unit and meaning of the column."""
        return column_of(self.column)

    @property
    def is_time(self) -> bool:
        """Whether replicas and ``verify`` tell the spread of the column."""
        return self.word.interval == "interval_pct" and self.word.unit == "us"

    def verdict(self, change: ChangePoint) -> str:
        """Return ``faster: 0.84x the time``, or ``higher: 1.20x`` for a column that is no time."""
        if self.word.unit == "us":
            return f"{'faster' if change.factor < 1 else 'slower'}: {change.factor:.2f}x the time"
        return f"{'lower' if change.factor < 1 else 'higher'}: {change.factor:.2f}x"
