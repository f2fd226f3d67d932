"""Change points: the runs at which a series has a lasting change.

These are runs from which all later ones differ from all earlier ones by more than two runs of the same code do. How
much that is comes from replicas, from what ``verify`` has measured, or from how runs of one commit differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import median, variance

from ..device.used_paths import FILES
from ..records.grouping import grouped
from ..store.fingerprint import is_version
from ..timing import statistics
from ..timing.statistics import T_975, Ratio, t_975
from .ratios import between_processes, separate_ratio
from .run_comparison import FEWEST_REPLICAS
from .series import ChangePoint, Point, Series, Source

FEWEST = 2  # degrees of freedom of the scatter between runs of one commit


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
        changes = [
            ChangePoint(place, after / before, steps[place][1], _also(each, place))
            for place, (before, after) in zip(places, pairwise(levels), strict=True)
        ]
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
    if series.is_time:
        if min(len(first.rows), len(other.rows)) >= FEWEST_REPLICAS:
            return between_processes(first.rows, other.rows), "replicas"
        apart = max(first.spread[1], other.spread[1])
        if math.isfinite(apart) and (ratio := separate_ratio(other.row, first.row, apart)):
            return ratio, "verify"
    if scatter is None:
        return None
    deviation, freedom = scatter
    between = t_975(freedom) * deviation * math.sqrt(2)
    half = max(between, math.hypot(first.spread[0], other.spread[0]))
    log = (other.log or 0.0) - (first.log or 0.0)
    return Ratio(log, half, min(freedom, max(T_975)), paired=False), "runs of one commit"


def _note(series: Series) -> str:
    """Return why no change can be found; "" if one could be."""
    judged = [point for point in series.points if point.log is not None]
    if len(judged) < 2:
        few = "one run" if len(series.points) == 1 else f"{len(judged)} of {len(series.points)} runs can be judged"
        return f"{few}: nothing to compare"
    if _ratio(judged[0], judged[-1], _scatter(judged), series) is None:
        known = f"{FEWEST_REPLICAS} replicas, a certificate (python -m runner verify), or several runs of one commit"
        return f"no change can be marked: how much two runs differ is not known; it takes {known}"
    return ""


def _also(series: Series, place: int) -> str:
    """Return what else is different from the point at ``place`` on, or that the sources are the same."""
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
