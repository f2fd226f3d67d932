"""The history of a case drawn: lines of text with a plot of characters, flat records, and a chart for images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from runner.experiment.results import figure, interval, printable
from runner.report import formats
from runner.report.charts import PALETTE, SCHEMA
from runner.report.history import History, Point, Series
from runner.report.terminal import verdict

PLOT = (12, 48)  # fewest and most characters
LEAST_RANGE = 0.02  # of the value: noise below it does not fill the plot
CHANGED = PALETTE[3]
MARGIN = 85  # characters beside the plot, with a remark
INTERVAL, LEFT, RIGHT, DOT, HOLLOW, CHANGE = "─├┤●○◀"


def text(history: History, width: int) -> Iterator[Text]:
    """Yield the constant fields, and each series with its runs, the oldest first, for ``width`` characters."""
    for name, constants in history.names.constants.items():
        yield Text(f"{name}: {' '.join(f'{field}={value}' for field, value in constants.items())}")
    for series in history.series:
        drawn = Text(no_wrap=True, overflow="ignore")
        drawn.append(f"\n{printable(history.heading(series))}\n", style="bold cyan")
        _draw(drawn, series, min(PLOT[1], max(PLOT[0], width - MARGIN)))
        drawn.append("\n".join(f"  {note}" for note in notes(series)), style="yellow")
        yield drawn


def notes(series: Series, mark: str = HOLLOW) -> list[str]:
    """Return what a figure of ``series`` leaves to be said. ``mark`` is how it shows a run that is not judged."""
    found = [
        f"different for good from {_commit(series.points[change.place])} of {series.points[change.place].when} on: "
        f"{series.verdict(change)} (spread by {change.source}{f'; {change.also}' if change.also else ''})"
        for change in series.changes
    ]
    if not found:
        found.append(series.note or "no run from which it is different for good")
    uncertain = [point for point in series.points if point.value is not None and point.doubt]
    if uncertain:
        words = ", ".join(sorted({verdict(point.row).replace("_", " ") for point in uncertain}))
        found.append(f"{mark} {len(uncertain)} of {len(series.points)} runs are not judged: {words}")
    return found


def _draw(drawn: Text, series: Series, width: int) -> None:
    """Add a line for each run to ``drawn``: date, commit, value, interval, plot, and what is to be said of it."""
    low, high = _range(series)
    unit = series.word.unit
    values = [figure(point.value, unit) for point in series.points]
    commits = [_commit(point) for point in series.points]
    widths = [max(map(len, cells)) for cells in (["commit", *commits], [series.column, *values])]
    changes = {change.place: change for change in series.changes}
    scale = f"{figure(low, unit, 3):<{width // 2}}{figure(high, unit, 3):>{width - width // 2}}"
    drawn.append(f"  {'run':19}  {'commit':<{widths[0]}}  {series.column:>{widths[1]}}  {'±95 %':>6}  {scale}\n")
    for place, (point, value, commit) in enumerate(zip(series.points, values, commits, strict=True)):
        drawn.append(f"  {point.when}  {commit:<{widths[0]}}  {value:>{widths[1]}}  {interval(point.percent):>6}  ")
        change = changes.get(place)
        remark = f"  {CHANGE} {series.verdict(change)}" if change else ""
        remark = f"  {verdict(point.row)}" if point.value is None else remark
        plot = _plot(point, low, high, width)
        drawn.append(plot if remark else plot.rstrip(), style=None if point.doubt else "green")
        drawn.append(f"{remark}\n", style="bold yellow" if change else "red")


def _commit(point: Point) -> str:
    return printable(point.commit) or "no commit"


def _range(series: Series) -> tuple[float, float]:
    """Return the ends of the plot: all intervals are within."""
    ends = [end for point in series.points for end in _ends(point)]
    low, high = min(ends), max(ends)
    missing = LEAST_RANGE * abs(high) - (high - low)
    return (low - missing / 2, high + missing / 2) if missing > 0 else (low, high)


def _ends(point: Point) -> tuple[float, ...]:
    """Return the interval of a value; none without a value."""
    if point.value is None:
        return ()
    half = abs(point.value) * (point.percent or 0.0) / 100
    return (max(0.0, point.value - half) if point.value >= 0 else point.value - half, point.value + half)


def _plot(point: Point, low: float, high: float, width: int) -> str:
    """Return ``├──●──┤`` at its place in ``width`` characters."""
    cells = [" "] * width
    if point.value is None:
        return "".join(cells)
    first, last, middle = (
        round((value - low) / ((high - low) or 1.0) * (width - 1)) for value in (*_ends(point), point.value)
    )
    cells[first : last + 1] = INTERVAL * (last + 1 - first)
    cells[first], cells[last] = (LEFT, RIGHT) if first < last else (INTERVAL, INTERVAL)
    cells[middle] = HOLLOW if point.doubt else DOT
    return "".join(cells)


def records(history: History) -> list[dict[str, Any]]:
    """Return one flat record per run of each series, with the names of rows.csv."""
    found = []
    for series in history.series:
        case, changes = series.case, {change.place: change for change in series.changes}
        for place, point in enumerate(series.points):
            ends, change = _ends(point) or (None, None), changes.get(place)
            found.append(
                {
                    **formats.case_fields(case),
                    **history.names.settings(case),
                    "device": series.device,
                    "run": point.run,
                    "commit": point.commit,
                    "verdict": verdict(point.row),
                    series.column: point.value,
                    "low": ends[0],
                    "high": ends[1],
                    "judged": point.log is not None,
                    "change": series.verdict(change) if change else "",
                    "factor": change.factor if change else None,
                    "spread": change.source if change else "",
                    "also": change.also if change else "",
                }
            )
    return found


def chart(history: History) -> dict[str, Any]:
    """Return a Vega-Lite chart: a panel for each series, with its values, intervals and changes over the runs."""
    return {
        "$schema": SCHEMA,
        "background": "white",
        "vconcat": [_panel(history, series) for series in history.series],
        "padding": 12,
        "config": {"view": {"stroke": None}, "axis": {"gridColor": "#e6e6e6"}},
    }


def _panel(history: History, series: Series) -> Mapping[str, Any]:
    shown = [(place, point) for place, point in enumerate(series.points) if point.value is not None]
    names = {place: f"{point.when} {_commit(point)}" for place, point in shown}
    twice = {name for name, count in Counter(names.values()).items() if count > 1}  # begun in the same second
    names = {place: f"{name} ({place + 1})" if name in twice else name for place, name in names.items()}
    values = [
        {
            "place": place,
            "run": names[place],
            "value": point.value,
            "low": _ends(point)[0],
            "high": _ends(point)[1],
            "judged": "judged" if not point.doubt else "not judged",
        }
        for place, point in shown
    ]
    marks = [{"run": names[change.place], "text": series.verdict(change)} for change in series.changes]
    return {
        "title": {"text": history.heading(series), "subtitle": notes(series, "grey:"), "anchor": "start"},
        "width": min(1600, max(320, 24 * len(values))),
        "height": 240,
        "layer": [*_points(series, values), *_changes(marks)],
    }


def _points(series: Series, values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers of the intervals and of the values."""
    title = series.column if series.column.endswith(f"_{series.word.unit}") else f"{series.column} {series.word.unit}"
    x = {
        "field": "run",
        "type": "ordinal",
        "sort": {"field": "place"},
        "axis": {"title": None, "labelAngle": -90, "labelLimit": 220, "labelOverlap": True},
    }
    y = {"field": "low", "type": "quantitative", "scale": {"domain": _range(series)}, "title": title.strip()}
    colors = {"domain": ["judged", "not judged"], "range": [PALETTE[0], "#aaaaaa"]}
    color = {"field": "judged", "type": "nominal", "scale": colors, "legend": None}
    return [
        {
            "data": {"values": values},
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "y2": {"field": "high"}, "color": color},
        },
        {
            "data": {"values": values},
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
            "encoding": {"x": x, "y": {**y, "field": "value"}, "color": color},
        },
    ]


def _changes(marks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers of the lines at which a series changes for good, and of the words beside them."""
    x = {"field": "run", "type": "ordinal"}
    label = {"align": "left", "dx": 4, "baseline": "top", "color": CHANGED, "fontWeight": "bold"}
    return [
        {
            "data": {"values": marks},
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": CHANGED},
            "encoding": {"x": x},
        },
        {
            "data": {"values": marks},
            "mark": {"type": "text", **label},
            "encoding": {"x": x, "y": {"value": 4}, "text": {"field": "text"}},
        },
    ]


def table(history: History, series: Sequence[Series]) -> list[tuple[str, list[list[str]]]]:
    """Return the heading of each of ``series``, and its runs as cells under ``HEADS``."""
    found = []
    for one in series:
        changes = {change.place: one.verdict(change) for change in one.changes}
        cells = [
            [
                point.when,
                _commit(point),
                figure(point.value, one.word.unit),
                interval(point.percent),
                verdict(point.row),
                changes.get(place, ""),
            ]
            for place, point in enumerate(one.points)
        ]
        found.append((history.heading(one), cells))
    return found


HEADS = ("run", "commit", "value", "±95 %", "verdict", "change")
