"""Series: a case on one kind of device over past runs, with its change points.

A change point is a run from which all later ones differ from all earlier ones by more than two runs of the same code
do. How much that is comes from replicas, from what ``verify`` has measured, or from how runs of one commit differ.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median, variance
from typing import Literal

from ..device.used_paths import FILES
from ..measure.columns import column_of
from ..records.case import CaseRecord
from ..records.columns import Column
from ..records.grouping import grouped
from ..records.row import Row
from ..store.fingerprint import is_version
from ..timing import statistics
from ..timing.statistics import T_975, Ratio, t_975
from .ratios import FEWEST_REPLICAS, Spread, known_spread
from .validity import certain, verdict

TIME = "time_us"
FEWEST = 2  # degrees of freedom of the scatter between runs of one commit
Source = Literal[Spread, "runs of one commit"]


@dataclass(frozen=True)
class Point:
    """The case in one run."""

    run: str  # ``<date>/<time>-<name>``
    rows: Sequence[Row]  # one for each replica
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
    """What changes at the first point of a new level."""

    factor: float  # the median from there on over the median before, each up to the next change
    source: Source
    also: str  # what else is different at that point


@dataclass(frozen=True)
class Series:
    """The same case on one kind of device, the oldest run first."""

    case: CaseRecord  # in the newest run
    device: str
    column: str
    points: Sequence[Point]
    changes: Mapping[int, ChangePoint] = field(default_factory=dict)  # by the place of the point
    note: str = ""  # why no change can be marked

    @cached_property
    def quantity(self) -> Column:
        """The declaration of the column, with its unit."""
        return column_of(self.column)

    def verdict(self, change: ChangePoint) -> str:
        """Return ``faster: 0.84x the time``, or ``higher: 1.20x`` for a column that is no time."""
        if self.quantity.unit == "us":
            return f"{'faster' if change.factor < 1 else 'slower'}: {change.factor:.2f}x the time"
        return f"{'lower' if change.factor < 1 else 'higher'}: {change.factor:.2f}x"


def with_change_points(series: Sequence[Series]) -> list[Series]:
    """Return ``series`` with their changes, corrected for the number of series and of places at which one may be."""
    tried = [dict(_steps(each)) for each in series]
    nothing = Ratio(0.0, math.inf, max(T_975), paired=False)
    ratios = [ratio for steps in tried for ratio in ([ratio for ratio, _ in steps.values()] or [nothing])]
    words = iter(statistics.words(ratios))
    judged = []
    for each, steps in zip(series, tried, strict=True):
        said = [next(words) for _ in steps or [None]]
        places = [place for place, word in zip(steps, said, strict=False) if word in ("faster", "slower")]
        bounds = [0, *places, len(each.points)]
        logs = [[point.log for point in each.points[a:b] if point.log is not None] for a, b in pairwise(bounds)]
        levels = [math.exp(median(stretch or [0.0])) for stretch in logs]
        changes = {
            place: ChangePoint(after / before, steps[place][1], _also(each, place))
            for place, (before, after) in zip(places, pairwise(levels), strict=True)
        }
        judged.append(replace(each, changes=changes, note=_note(each)))
    return judged


def _steps(series: Series) -> Iterator[tuple[int, tuple[Ratio, Source]]]:
    """Yield the places from which a series is on one side of all that was before, by more than the spread.

    With each comes the weakest ratio of a later point over an earlier one, and where its spread comes from.
    """
    places = [place for place, point in enumerate(series.points) if point.log is not None]
    points = [series.points[place] for place in places]
    logs, scatter = [point.log or 0.0 for point in points], _scatter(points)
    highest, lowest = (list(accumulate(logs, pick)) for pick in (max, min))  # up to each place, and from there on
    highest_after, lowest_after = (list(accumulate(reversed(logs), pick))[::-1] for pick in (max, min))
    for at in range(1, len(places)):
        sign = (lowest_after[at] > highest[at - 1]) - (highest_after[at] < lowest[at - 1])
        if not sign:
            continue
        before, after = _front(points[:at], -sign), _front(points[at:], sign)
        pairs = [_ratio(first, other, scatter, series) for first in before for other in after]
        ratios = [pair for pair in pairs if pair is not None]
        if len(ratios) == len(pairs) and all(ratio.word in ("faster", "slower") for ratio, _ in ratios):
            yield places[at], max(ratios, key=lambda pair: pair[0].chance)


def _front(points: Sequence[Point], sign: int) -> list[Point]:
    """Return the points that decide: those to which no other is nearer to the other side and also less certain."""
    front: list[Point] = []
    widest = [-1.0, -1.0, -1.0]
    for point in sorted(points, key=lambda point: sign * (point.log or 0.0)):
        spread = [*point.spread, -float(len(point.rows))]
        if any(mine > most for mine, most in zip(spread, widest, strict=True)) or not front:
            front.append(point)
            widest = list(map(max, spread, widest)) if front[1:] else spread
    return front


def _scatter(points: Sequence[Point]) -> tuple[float, int] | None:
    """Return the standard deviation of the logarithm between runs of one commit, and its degrees of freedom."""
    committed = [point for point in points if point.commit and not point.commit.endswith("*")]
    groups = [group for group in grouped(committed, lambda point: point.commit).values() if group[1:]]
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < FEWEST:
        return None
    squares = sum(variance(point.log or 0.0 for point in group) * (len(group) - 1) for group in groups)
    return math.sqrt(squares / freedom), freedom


def _ratio(
    first: Point, other: Point, scatter: tuple[float, int] | None, series: Series
) -> tuple[Ratio, Source] | None:
    """Return the value of ``other`` over that of ``first``, and where its spread comes from; None without one."""
    is_time = (series.quantity.interval, series.quantity.unit) == ("interval_pct", "us")
    if is_time and (known := known_spread(first.rows, other.rows)):
        return known
    if scatter is None:
        return None
    deviation, freedom = scatter
    between = t_975(freedom) * deviation * math.sqrt(2)
    half = max(between, math.hypot(first.spread[0], other.spread[0]))
    log = (other.log or 0.0) - (first.log or 0.0)
    return Ratio(log, half, min(freedom, max(T_975)), paired=False), "runs of one commit"


def _note(series: Series) -> str:
    """Return the reason why no change can be found, else ""."""
    judged = [point for point in series.points if point.log is not None]
    if len(judged) < 2:
        few = "one run" if len(series.points) == 1 else f"{len(judged)} of {len(series.points)} runs can be judged"
        return f"{few}: nothing to compare"
    if _ratio(judged[0], judged[-1], _scatter(judged), series) is None:
        known = f"{FEWEST_REPLICAS} replicas, a certificate (python -m runner verify), or several runs of one commit"
        return f"no change can be marked: how much two runs differ is not known; it takes {known}"
    return ""


def _also(series: Series, place: int) -> str:
    """Describe what else changed at the point at ``place``, or say that the sources are the same."""
    before, after = series.points[place - 1].row, series.points[place].row
    prints = before.fingerprint, after.fingerprint
    every = sorted({*prints[0], *prints[1]})
    changed = [name for name in every if prints[0].get(name) != prints[1].get(name)]
    sources, texts = [name for name in every if not is_version(name) and name != FILES], list[str]()
    if different := [name for name in sources if name in changed]:
        texts.append(f"{different[0]}{f' and {len(different) - 1} more' if different[1:] else ''} changed")
    elif sources:
        texts.append("its sources are the same")
    texts += [f"{name} {prints[0].get(name)} → {prints[1].get(name)}" for name in changed if is_version(name)]
    gpus = {row.metrics.get("gpu_uuid") for row in (before, after)}
    return ", ".join([*texts, *(["another GPU of the kind"] if None not in gpus and len(gpus) > 1 else [])])
