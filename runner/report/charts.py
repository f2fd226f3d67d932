"""The charts of one or several runs as Vega-Lite specs, for the page, images and other readers.

Drawing them needs vl-convert, an extra: ``pip install 'kernel-runner[report]'``. Making the specs needs nothing.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..findings.chart_data import (
    MEMORY,
    OPERATIONS,
    SPEEDUP,
    TIME,
    Peaks,
    chart_point,
    limiting_rate,
    part,
    peaks_of,
    roofline_point,
    swept,
)
from ..findings.lines import Line
from ..findings.names import Names
from ..findings.run import Run, joint, run_names
from ..findings.validity import may_win
from ..records.columns import Column
from ..records.figures import figure
from ..records.grouping import grouped
from .output import slug

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
DATA = "rows"  # name of the data in a spec
PALETTE = (  # distinct on white and on black, and for most colour-blind readers
    *("#4c78d0", "#e8871a", "#2a9d6e", "#d1495b", "#8e6bbf", "#8c6d46", "#d977b5", "#7a7f87", "#a3a128", "#2fa6c4"),
    *("#9db7ee", "#f3bd80", "#8fd0b2", "#eb9fa9", "#c7b3e0", "#c9b08f", "#efbcdc", "#b9bdc4", "#d4d27a", "#93d3e4"),
)
WIDTH, HEIGHT = 640, 320  # size of an image without its axes, in pixels
SUBTITLE = 110  # characters in a line of that width
PICK = {"name": "pick", "select": {"type": "point", "fields": ["implementation"]}, "bind": "legend"}
LOG_FROM = 8  # largest over smallest value from which an axis is logarithmic
MOST_TICKS = 12  # sizes that all get a label
LABEL = (  # 0.04 s → 40 ms
    "datum.value ? replace(replace(format(datum.value, '~s'), 'µ', 'u'), regexp('([a-zA-Z]?)$'), ' $1{unit}') : '0'"
)
SIZE_LABEL = (  # 65536 → 64k, as on the command line
    "datum.value >= 1048576 && datum.value % 1048576 == 0 ? datum.value / 1048576 + 'M' : "
    "datum.value >= 16384 && datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)


@dataclass(frozen=True)
class Chart:
    """A chart: its data beside a spec that refers to them."""

    name: str  # letters, digits and dashes, different for each chart of a report
    title: str
    kind: str = ""  # time | rate | speedup | memory | roofline
    group: str = ""  # the workload, or the GPU and type of a roofline
    part: str = ""  # what is the same for all of its points: ``dtype=bfloat16``
    subtitle: str = ""  # the device, and the fields that are the same in all cases of the workload
    data: Sequence[Mapping[str, Any]] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)  # without size, background and data

    def whole(self) -> dict[str, Any]:
        """Return the spec of an image of the chart, with its data and title."""
        size = {"width": WIDTH, "height": HEIGHT, "background": "white", "padding": 12}
        data = {"name": DATA, "values": list(self.data)}
        lines = textwrap.wrap(self.subtitle, SUBTITLE)
        title = {"text": self.title, "subtitle": lines, "anchor": "start", "subtitleColor": "#5b6470"}
        return {"$schema": SCHEMA, **size, "title": title, "data": data, **self.spec}


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts of ``runs``: time, rate, speed-up and memory by workload, then a roofline by GPU and type.

    Only correct results are drawn. There is none for a workload without any, and no roofline without a measured peak.
    """
    names = joint(runs)
    drawn = [
        (name, line.shown)
        for name, run in zip(run_names(runs), runs, strict=True)
        for line in run.lines
        if may_win(line.row) and (line.time_us or 0) > 0
    ]
    labels = list(dict.fromkeys(names.impl(row.case) for run in runs for row in run.rows))
    look, workloads = Look(labels, len(runs) > 1), grouped(drawn, lambda item: item[1].case.workload.name)
    of_workloads = (_of_workload(name, workloads.get(name, []), names, look) for name in names.axes)
    return [*chain.from_iterable(of_workloads), *_rooflines(drawn, names, look)]


def _of_workload(workload: str, drawn: Sequence[tuple[str, Line]], names: Names, look: Look) -> Iterator[Chart]:
    """Yield the charts of a workload, for each set of values beside its axis."""
    axis = swept([line.case for _, line in drawn], names)
    rate = limiting_rate([line for _, line in drawn])
    for text, members in grouped(drawn, lambda item: part(item[1].case, names, axis)).items():
        data = [chart_point(run, line, names, axis, rate) for run, line in members]
        for kind, quantity in {"time": TIME, "rate": rate, "speedup": SPEEDUP, "memory": MEMORY}.items():
            points = [point for point in data if point.get(kind) is not None]
            single = not axis or len({point["size"] for point in points}) < 2
            if quantity is None or not points or (kind == "speedup" and len(data) < 2) or (kind == "memory" and single):
                continue
            spec = look.bars(kind, quantity, points) if single else look.lines(kind, quantity, points, axis)
            along = f" by {axis}" if not single else ""
            title = f"{workload}: {quantity.title}{along}" + (f" ({text})" if text else "")
            devices = dict.fromkeys(line.row.device for _, line in members)
            subtitle = " · ".join(filter(None, [*devices, names.constant(workload)]))
            yield Chart(slug(f"{workload}-{kind}-{text}"), title, kind, workload, text, subtitle, points, spec)


def layer(mark: Mapping[str, Any], encoding: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a layer of a chart; ``more`` are its data, parameters and transformations."""
    return {**more, "mark": mark, "encoding": encoding}


def nominal(field: str, **more: Any) -> dict[str, Any]:
    """Return the encoding of a field of words."""
    return {"field": field, "type": "nominal", **more}


def quantitative(field: str, title: str, **more: Any) -> dict[str, Any]:
    """Return the encoding of a field of numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


@dataclass(frozen=True)
class Look:
    """What all charts of a report share: a colour for each implementation, a dash for each run."""

    labels: Sequence[str]
    several: bool  # runs

    def _color(self, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        colours = {label: PALETTE[place % len(PALETTE)] for place, label in enumerate(self.labels)}
        shown = {point["implementation"] for point in points}
        domain = [label for label in self.labels if label in shown]
        return nominal("implementation", scale={"domain": domain, "range": [colours[label] for label in domain]})

    def identity(self, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the encoding of the implementation, with a legend in which it can be picked."""
        opacity = {"condition": {"param": "pick", "value": 1}, "value": 0.12}
        return {"color": {**self._color(points), "legend": {"title": None}}, "opacity": opacity}

    def lines(self, kind: str, quantity: Column, points: Sequence[Mapping[str, Any]], axis: str) -> dict[str, Any]:
        """Return a line per implementation against the swept size, with intervals."""
        values = sorted({point["size"] for point in points})
        ticks = {"values": values} if len(values) <= MOST_TICKS else {}
        log = min(values) > 0 and values[-1] / values[0] >= LOG_FROM
        sizes = {"type": "log", "base": 2, "nice": False} if log else {"zero": False, "nice": False}
        labels = {"labelExpr": SIZE_LABEL, "labelOverlap": "greedy", "grid": False, **ticks}
        y = quantitative(kind, quantity.title, **scale(kind, quantity, points))
        ends = {"y": {**y, "field": f"{kind}_low"}, "y2": {"field": f"{kind}_high"}}
        legend = {"title": None, "symbolType": "stroke"}
        dash = {"strokeDash": nominal("run", legend=legend)} if self.several else {}
        # A point that is not plainly ok has no filling.
        filled = {"condition": {"test": "datum.verdict === 'ok'", "value": 1}, "value": 0}
        filling = {"fill": {**self._color(points), "legend": None}, "fillOpacity": filled}
        rule = {"type": "rule", "strokeWidth": 5, "strokeOpacity": 0.45}
        point = {"type": "point", "size": 36, "strokeWidth": 1.5}
        return {
            "encoding": {"x": quantitative("size", axis, scale=sizes, axis=labels), **self.identity(points)},
            "layer": [
                layer({"type": "line", "strokeWidth": 2}, {"y": y, "detail": {"field": "run"}, **dash}, params=[PICK]),
                *_base(kind),
                layer(rule, ends, transform=[_has_interval(kind)]),
                layer(point, {"y": y, **filling, "tooltip": self._tooltip(kind, quantity, axis)}),
            ],
        }

    def bars(self, kind: str, quantity: Column, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a bar per implementation, with intervals, where nothing is swept."""
        x = quantitative(kind, quantity.title, axis=_ticks(quantity), stack=None)
        ends = {"x": {**x, "field": f"{kind}_low"}, "x2": {"field": f"{kind}_high"}}
        order = sorted(points, key=lambda point: point[kind], reverse=kind != "time")
        labels = list(dict.fromkeys(point["implementation"] for point in order))
        y = nominal("implementation", title=None, sort=labels, axis={"labelLimit": 180})
        offset = {"yOffset": nominal("run")} if self.several else {}
        bar = {"type": "bar", "fillOpacity": 0.75, "height": {"band": 0.7}}
        shown = {"x": x, "color": {**self._color(points), "legend": None}, "tooltip": self._tooltip(kind, quantity, "")}
        rule = layer({"type": "rule", "strokeWidth": 2}, ends, transform=[_has_interval(kind)])
        return {"encoding": {"y": y, **offset}, "layer": [layer(bar, shown), rule]}

    def _tooltip(self, kind: str, quantity: Column, axis: str) -> list[dict[str, Any]]:
        return [
            nominal("implementation"),
            *([nominal("run")] if self.several else []),
            *([quantitative("size", axis, format="d")] if axis else []),
            nominal(f"{kind}_text", title=quantity.title),
            nominal(f"{kind}_interval", title="95 % interval"),
            nominal("verdict"),
        ]

    def roofline(self, points: Sequence[Mapping[str, Any]], peaks: Peaks) -> dict[str, Any]:
        """Return operations per second against operations per byte, below the measured peak."""
        grid = {"grid": False, "format": "~r", "labelOverlap": True}
        log = {"type": "log", "nice": False}
        x = quantitative("intensity", "operations per byte of minimum traffic", scale=log, axis=grid)
        y = quantitative("rate", OPERATIONS.title, axis=_ticks(OPERATIONS), scale={**log, "padding": 12})
        several = len({point["workload"] for point in points}) > 1
        shapes = {"shape": nominal("workload", legend={"title": None})} if several else {}
        limits = {"values": peaks.points([point["intensity"] for point in points])}
        tooltip = [
            nominal("case"),
            *([nominal("run")] if self.several else []),
            nominal("rate_text", title=OPERATIONS.title),
            quantitative("intensity", "operations per byte", format=".3~r"),
            quantitative("peak", "% of measured peak", format=".0f"),
        ]
        line = layer({"type": "line", "color": "#7a7f87", "strokeWidth": 2.5}, {"x": x, "y": y}, data=limits)
        encoding = {"x": x, "y": y, **self.identity(points), **shapes, "tooltip": tooltip}
        return {"layer": [line, layer({"type": "point", "filled": True, "size": 55}, encoding, params=[PICK])]}


def _has_interval(kind: str) -> dict[str, str]:
    return {"filter": f"isValid(datum.{kind}_low) && isValid(datum.{kind}_high)"}


def _ticks(quantity: Column) -> dict[str, Any]:
    shape = {"labelExpr": LABEL.format(unit=quantity.unit)} if quantity.unit else {"format": "~r"}
    return {**shape, "labelOverlap": True}


def scale(kind: str, quantity: Column, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scale of the vertical axis: logarithmic if the values differ by much, else from 0."""
    values = [point[kind] for point in points]
    if max(values) / min(values) < LOG_FROM:
        return {"scale": {"zero": True}, "axis": _ticks(quantity)}
    tens = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    ticks = [step * 10.0**ten for ten in tens for step in (1, 2, 5)]
    return {"scale": {"type": "log", "nice": False, "padding": 12}, "axis": {**_ticks(quantity), "values": ticks}}


def _base(kind: str) -> list[dict[str, Any]]:
    """Return the line of the baseline, whose speed-up is 1."""
    if kind != "speedup":
        return []
    mark, none = {"type": "rule", "strokeDash": [4, 4], "color": "#7a7f87"}, {"value": None}
    return [layer(mark, {"y": {"datum": 1}, "x": none, "color": none}, data={"values": [{"one": 1}]})]


def _rooflines(drawn: Sequence[tuple[str, Line]], names: Names, look: Look) -> Iterator[Chart]:
    """Yield a roofline for each GPU and type whose measured peak is known from the rows."""
    located = [(run, point) for run, line in drawn if (point := roofline_point(line)) and point.peak_pct]
    for group, members in grouped(located, lambda item: _device_and_type(item[1].line)).items():
        peaks = peaks_of([point for _, point in members])
        data = [
            {
                "implementation": names.impl(point.line.case),
                "case": names.case(point.line.case),
                "workload": point.line.case.workload.name,
                "run": run,
                "intensity": float(f"{point.intensity:.4g}"),
                "rate": float(f"{point.flop_per_s:.4g}"),
                "rate_text": figure(point.flop_per_s, "FLOP/s"),
                "peak": float(f"{point.peak_pct:.3g}"),
            }
            for run, point in members
        ]
        if peaks.bytes_per_s or peaks.flop_per_s:
            title, spec = f"Roofline of {group}; measured peak: {peaks.text}", look.roofline(data, peaks)
            told = ((name, names.constant(name)) for name in dict.fromkeys(str(point["workload"]) for point in data))
            subtitle = " · ".join(f"{name}: {fields}" for name, fields in told if fields)
            yield Chart(slug(f"roofline-{group}"), title, "roofline", group, "", subtitle, data, spec)


def _device_and_type(line: Line) -> str:
    fields = line.case.workload.fields
    kind = f"{fields.get('dtype') or ''}{' tf32' * (fields.get('tf32') is True)}".strip()
    return f"{line.row.device} {kind}"
