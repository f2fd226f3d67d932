"""The history of a case drawn: lines of text with a plot of characters, flat records, and a chart for images."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.text import Text

from ..findings.change_points import Point, Series
from ..findings.flat import case_fields
from ..findings.history import History
from ..findings.validity import verdict
from ..records.figures import figure, interval
from ..records.plain_text import printable, text_table
from .charts import PALETTE, SCHEMA, Chart, layer, nominal, quantitative
from .table import Parts, Table, html_of, rich_text
from .to_html import document

PLOT = (12, 48)  # fewest and most characters
LEAST_RANGE = 0.02  # least range, as a share of the value, so that noise does not fill the plot
CHANGED = PALETTE[3]
MARGIN = 85  # characters beside the plot, with a remark
INTERVAL, LEFT, RIGHT, DOT, HOLLOW, CHANGE = "─├┤●○◀"


def figure_text(history: History, width: int) -> Text:
    """Return the constant fields, and each series with its runs, the oldest first, for ``width`` characters."""
    parts = [(f"{name}: {history.names.constant(name)}\n", "") for name in history.names.constants]
    for series in history.series:
        parts += [(f"\n{printable(history.heading(series))}\n", "bold cyan")]
        parts += _drawn(series, min(PLOT[1], max(PLOT[0], width - MARGIN)))
        parts += [("".join(f"  {note}\n" for note in series_notes(series)), "yellow")]
    return rich_text([*parts[:-1], (parts[-1][0].rstrip(), parts[-1][1])])


def series_notes(series: Series, mark: str = HOLLOW) -> list[str]:
    """Return the sentences below a figure of ``series``. ``mark``: how the figure shows a run that is not judged."""
    notes = [
        f"changed at {_commit(series.points[place])} of {series.points[place].when}: "
        f"{series.verdict(change)} (spread by {change.source}{f'; {change.also}' if change.also else ''})"
        for place, change in series.changes.items()
    ]
    notes = notes or [series.note or "no lasting change"]
    uncertain = [point for point in series.points if point.value is not None and point.doubt]
    if uncertain:
        words = ", ".join(sorted({point.doubt.replace("_", " ") for point in uncertain}))
        notes.append(f"{mark} {len(uncertain)} of {len(series.points)} runs are not judged: {words}")
    return notes


def _drawn(series: Series, width: int) -> Parts:
    """Return a line for each run: date, commit, value, interval, plot, and what is to be said of it."""
    low, high = _range(series)
    ends = [figure(end, series.quantity.unit, 3) for end in (low, high)]
    head, *lines = text_table([["run", "commit", series.column, "±95 %"], *_cells(series)], (0, 1))
    parts = [(f"{head}  {ends[0]:<{width // 2}}{ends[1]:>{width - width // 2}}\n", "")]
    for place, (point, line) in enumerate(zip(series.points, lines, strict=True)):
        change = series.changes.get(place)
        remark = f"  {CHANGE} {series.verdict(change)}" if change else ""
        remark = f"  {verdict(point.row)}" if point.value is None else "  quick" if point.quick else remark
        plot = _plot(point, low, high, width)
        parts += [(f"{line:<{len(head)}}  ", ""), (plot if remark else plot.rstrip(), "" if point.doubt else "green")]
        parts += [(f"{remark}\n", "bold yellow" if change else "red")]
    return parts


def _cells(series: Series) -> list[list[str]]:
    text = series.quantity.text
    return [[point.when, _commit(point), text(point.value), interval(point.percent)] for point in series.points]


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
    if point.value is None:
        return " " * width
    cells = [" "] * width
    first, last, middle = (
        round((value - low) / ((high - low) or 1.0) * (width - 1)) for value in (*_ends(point), point.value)
    )
    cells[first : last + 1] = INTERVAL * (last + 1 - first)
    cells[first], cells[last] = (LEFT, RIGHT) if first < last else (INTERVAL, INTERVAL)
    cells[middle] = HOLLOW if point.doubt else DOT
    return "".join(cells)


def history_records(history: History) -> list[dict[str, Any]]:
    """Return one flat record per run of each series, with the names of rows.csv."""
    records = []
    for series in history.series:
        fields = {**case_fields(series.case), **history.names.settings(series.case), "device": series.device}
        for place, point in enumerate(series.points):
            change, (low, high) = series.changes.get(place), _ends(point) or (None, None)
            measured = {
                "run": point.run,
                "commit": point.commit,
                "verdict": verdict(point.row),
                "quick": point.quick,
                series.column: point.value,
                "low": low,
                "high": high,
                "judged": point.log is not None,
                "change": series.verdict(change) if change else "",
                "factor": change.factor if change else None,
                "spread": change.source if change else "",
                "also": change.also if change else "",
            }
            records.append({**fields, **measured})
    return records


def history_chart(history: History) -> dict[str, Any]:
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
        {"place": place, "run": names[place], "value": point.value, "judged": "not judged" if point.doubt else "judged"}
        | dict(zip(("low", "high"), _ends(point), strict=True))
        for place, point in shown
    ]
    marks = [{"run": names[place], "text": series.verdict(change)} for place, change in series.changes.items()]
    return {
        "title": {"text": history.heading(series), "subtitle": series_notes(series, "grey:"), "anchor": "start"},
        "width": min(1600, max(320, 24 * len(values))),
        "height": 240,
        "layer": [*_points(series, {"values": values}), *_changes({"values": marks})],
    }


def _points(series: Series, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    unit = series.quantity.unit
    title = series.column if series.column.endswith(f"_{unit.lower()}") else f"{series.column} {unit}".strip()
    labels = {"title": None, "labelAngle": -90, "labelLimit": 220, "labelOverlap": True}
    x = {"field": "run", "type": "ordinal", "sort": {"field": "place"}, "axis": labels}
    y = quantitative("low", title, scale={"domain": _range(series)})
    colors = {"domain": ["judged", "not judged"], "range": [PALETTE[0], "#aaaaaa"]}
    both = {"x": x, "color": nominal("judged", scale=colors, legend=None)}
    point = {"type": "point", "filled": True, "size": 55, "opacity": 1}
    return [
        layer({"type": "rule", "strokeWidth": 2}, {**both, "y": y, "y2": {"field": "high"}}, data=data),
        layer(point, {**both, "y": {**y, "field": "value"}}, data=data),
    ]


def _changes(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the layers that mark the lasting changes of a series: a line and a few words for each."""
    x = {"field": "run", "type": "ordinal"}
    rule = {"type": "rule", "strokeDash": [5, 4], "color": CHANGED}
    text = {"type": "text", "align": "left", "dx": 4, "baseline": "top", "color": CHANGED, "fontWeight": "bold"}
    words = {"x": x, "y": {"value": 4}, "text": {"field": "text"}}
    return [layer(rule, {"x": x}, data=data), layer(text, words, data=data)]


def history_table(history: History) -> Table:
    """Return the runs of each series as a table with notes."""
    groups = []
    for series in history.series:
        changes = {place: series.verdict(change) for place, change in series.changes.items()}
        rows = [
            [*each, f"{verdict(point.row)}, quick" if point.quick else verdict(point.row), changes.get(place, "")]
            for place, (each, point) in enumerate(zip(_cells(series), series.points, strict=True))
        ]
        groups.append((history.heading(series), rows))
    notes = [note for series in history.series for note in series_notes(series)]
    heads = ("run", "commit", "value", "±95 %", "verdict", "change")
    return Table(f"History of {history.series[0].column}", heads, groups, notes, left=frozenset({0, 1, 4, 5}))


def history_page(history: History) -> str:
    """Return a page: what changed, each case with its intervals over the runs, and the table.

    Raises BadInput if vl-convert is not installed.
    """
    table, names = history_table(history), history.names
    panels = {history.heading(series): _panel(history, series)["layer"] for series in history.series}
    drawn = [Chart("", heading, spec={"layer": layers}) for heading, layers in panels.items()]
    return document(
        "history.html",
        table.title,
        drawn,
        constants=[f"{name}: {text}" for name in names.constants if (text := names.constant(name))],
        notes=[f"{history.heading(series)}: {'; '.join(series_notes(series, 'grey:'))}" for series in history.series],
        runs=html_of(replace(table, title="", notes=())),
    )
