"""The charts of one or several runs as Vega-Lite specs, for the page, images and other readers.

Drawing them needs vl-convert, an extra: ``pip install 'kernel-runner[report]'``. Making the specs needs nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import figure
from runner.experiment.schema import BadInput
from runner.report.derive import Line, Names, Run, may_win
from runner.report.terminal import verdict

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
DATA = "rows"  # name of the data in a spec
PALETTE = (  # distinct on white and on black, and for most colour-blind readers
    *("#4c78d0", "#e8871a", "#2a9d6e", "#d1495b", "#8e6bbf", "#8c6d46", "#d977b5", "#7a7f87", "#a3a128", "#2fa6c4"),
    *("#9db7ee", "#f3bd80", "#8fd0b2", "#eb9fa9", "#c7b3e0", "#c9b08f", "#efbcdc", "#b9bdc4", "#d4d27a", "#93d3e4"),
)
CONFIG: Mapping[str, Any] = {
    "legend": {"orient": "top", "columns": 4, "labelLimit": 240, "symbolType": "circle"},
    "axis": {"gridColor": "#e6e6e6", "domainColor": "#888888", "tickColor": "#888888"},
    "view": {"stroke": None},
}
WIDTH, HEIGHT = 640, 320  # of an image, in pixels without its axes
DRAWN: Mapping[str, Mapping[str, Any]] = {".png": {"scale": 2}, ".svg": {}}  # arguments by the ending of a file
LOG_FROM = 8  # largest over smallest value from which an axis is logarithmic
MOST_TICKS = 12  # sizes that all get a label
COMPUTE_FROM = 20  # operations per byte from which the rate shown is that of operations, without a measured peak
SIZE_LABEL = (  # 65536 → 64k, as on the command line
    "datum.value >= 1048576 && datum.value % 1048576 == 0 ? datum.value / 1048576 + 'M' : "
    "datum.value >= 16384 && datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)


@dataclass(frozen=True)
class Chart:
    """A chart: its data beside a spec that refers to them."""

    name: str  # letters, digits and dashes, different for each chart of a report
    title: str
    kind: str  # time | rate | speedup | roofline
    group: str  # the workload, or the GPU and type of a roofline
    part: str  # what is the same for all of its points: ``dtype=bfloat16``
    data: Sequence[Mapping[str, Any]]
    spec: Mapping[str, Any]  # without size, background and data

    def whole(self, width: int = WIDTH, height: int = HEIGHT) -> dict[str, Any]:
        """Return the spec of an image of the chart, with its data and title."""
        title = {"text": self.title, "anchor": "start"}
        size = {"width": width, "height": height, "background": "white", "padding": 12}
        return {
            "$schema": SCHEMA,
            **size,
            "title": title,
            "data": {"name": DATA, "values": list(self.data)},
            **self.spec,
        }


@dataclass(frozen=True)
class Axis:
    """What the horizontal axis of the charts of a workload shows."""

    name: str  # a field of the workload; "" if no number is swept
    values: Sequence[float]


def convert() -> ModuleType:
    """Return the package that draws. Raises BadInput if it is not installed."""
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise BadInput("charts need vl-convert; pip install 'kernel-runner[report]'") from None
    return vl_convert


def joint(runs: Sequence[Run]) -> Names:
    """Return labels that tell the cases of all ``runs`` apart.

    A setting that varies between runs alone, such as the number of samples, is no part of a problem: the same problems
    of two runs stand together.
    """
    return Names([case for run in runs for case in _cases(run)])


def _cases(run: Run) -> list[CaseRecord]:
    """Return the cases of ``run``, without settings that are the same in all of them."""
    cases = list(run.cases or (row.case for row in run.rows))
    if any(run.names.settings(case) for case in cases):
        return cases
    constant: dict[str, Any] = {"measures": (), "device": "auto", "seed": 0, "time_wrong": False, "debug": None}
    return [replace(case, **constant, quick=False, deterministic_algorithms=False) for case in cases]


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a different name for each run: its time and name, with the date or the path where that is not enough."""
    for end in (1, 2, 0):
        found = ["/".join(run.folder.resolve().parts[-end:]) for run in runs]
        if len(set(found)) == len(runs):
            return found
    return [f"{name} ({place})" for place, name in enumerate(found, 1)]


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts of ``runs``: time, rate and speed-up by workload, then a roofline by GPU and type.

    Only correct results are drawn. There is none for a workload without any, and no roofline without a measured peak.
    """
    names = joint(runs)
    drawn = [
        (name, line)
        for name, run in zip(run_names(runs), runs, strict=True)
        for line in run.lines
        if may_win(line.row) and (line.time_us or 0) > 0
    ]
    labels = list(dict.fromkeys(names.impl(case) for run in runs for case in (row.case for row in run.rows)))
    look = _Look(labels, len(runs) > 1)
    found: list[Chart] = []
    for workload in names.axes:
        some = [(run, line) for run, line in drawn if line.row.case.workload.name == workload]
        found += _of_workload(workload, some, names, look)
    return [*found, *_rooflines(drawn, names, look)]


def _of_workload(workload: str, drawn: Sequence[tuple[str, Line]], names: Names, look: _Look) -> Iterator[Chart]:
    """Yield the charts of a workload, for each set of values beside its axis."""
    axis = swept([line.row.case for _, line in drawn], names)
    parts: dict[str, list[tuple[str, Line]]] = {}
    for run, line in drawn:
        parts.setdefault(part(line.row.case, names, axis.name), []).append((run, line))
    rate = _rate([line for _, line in drawn])
    for text, some in parts.items():
        data = [_point(run, line, names, axis.name, rate) for run, line in some]
        for kind, quantity in {"time": TIME, "rate": rate, "speedup": SPEEDUP}.items():
            points = [point for point in data if point.get(kind) is not None]
            if quantity is None or not points or (kind == "speedup" and len(data) < 2):
                continue
            single = axis.name == "" or len({point["size"] for point in points}) < 2
            spec = look.bars(kind, quantity, points) if single else look.lines(kind, quantity, points, axis)
            along = f" by {axis.name}" if not single else ""
            title = f"{workload}: {quantity.name}{along}" + (f" ({text})" if text else "")
            yield Chart(slug(f"{workload}-{kind}-{text}"), title, kind, workload, text, points, spec)


def swept(cases: Sequence[CaseRecord], names: Names) -> Axis:
    """Return the number that takes most values in ``cases`` of one workload; no name if none takes several."""
    values: dict[str, list[float]] = {}
    for name in names.axes[cases[0].workload.name] if cases else ():
        own = {case.workload.fields.get(name) for case in cases}
        numbers = sorted(one for one in own if isinstance(one, int | float) and not isinstance(one, bool))
        values[name] = numbers if len(numbers) == len(own) > 1 else []
    best = max(values, key=lambda name: len(values[name]), default="")
    return Axis(best, values[best]) if values.get(best) else Axis("", ())


def part(case: CaseRecord, names: Names, axis: str) -> str:
    """Return what varies beside the implementation and ``axis``: ``dtype=bfloat16 rows=64``; "" if nothing does."""
    return " ".join(f"{name}={value}" for name, value in names.problem(case).items() if name != axis)


@dataclass(frozen=True)
class Quantity:
    """What the vertical axis shows."""

    name: str
    unit: str  # "" for a factor


TIME, SPEEDUP = Quantity("time", "s"), Quantity("speed-up", "")
BANDWIDTH, OPERATIONS = Quantity("bandwidth", "B/s"), Quantity("operations", "FLOP/s")


def _rate(lines: Sequence[Line]) -> Quantity | None:
    """Return the rate that limits most of ``lines``; None if their work is unknown."""
    votes = []
    for line in lines:
        flops, size = line.value("flops") or 0, line.value("bytes_min") or 0
        if flops or size:
            bound = line.value("bound") or ("compute" if flops > COMPUTE_FROM * size else "memory")
            votes.append(bound == "compute")
    if not votes:
        return None
    return OPERATIONS if 2 * sum(votes) > len(votes) else BANDWIDTH


def _point(run: str, line: Line, names: Names, axis: str, rate: Quantity | None) -> dict[str, Any]:
    """Return the figures of ``line``, in units without a prefix."""
    metrics, time_us = line.row.metrics, line.time_us or 0.0
    ends = [_number(metrics.get(name)) for name in ("low_us", "high_us")]
    low, high = ends if all(ends) and ends[0] else (None, None)
    point: dict[str, Any] = {
        "implementation": names.impl(line.row.case),
        "run": run,
        "size": line.row.case.workload.fields.get(axis) if axis else None,
        "verdict": verdict(line.row),
        **_bounded("time", time_us, low, high, 1e-6),
        **_bounded("speedup", line.speedup, line.speedup_low, line.speedup_high, 1.0),
    }
    amount = metrics.get("flops" if rate is OPERATIONS else "bytes_min") if rate else None
    if isinstance(amount, int | float) and amount > 0:
        slow, quick = (amount / end if end else None for end in (high, low))
        point |= _bounded("rate", amount / time_us, slow, quick, 1e6)
    return point


def _bounded(name: str, value: float | None, low: float | None, high: float | None, factor: float) -> dict[str, Any]:
    known = {name: value, f"{name}_low": low, f"{name}_high": high}
    return {key: float(f"{one * factor:.5g}") for key, one in known.items() if one is not None and math.isfinite(one)}


def _number(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(frozen=True)
class _Look:
    """What all charts of a report share: a colour for each implementation, a dash for each run."""

    labels: Sequence[str]
    several: bool  # runs

    def _identity(self) -> dict[str, Any]:
        colours = [PALETTE[place % len(PALETTE)] for place in range(len(self.labels))]
        scale = {"domain": list(self.labels), "range": colours}
        legend = {"title": None}
        found: dict[str, Any] = {
            "color": {"field": "implementation", "type": "nominal", "scale": scale, "legend": legend},
            "opacity": {"condition": {"param": "pick", "value": 1}, "value": 0.12},
        }
        return found

    def _filling(self) -> dict[str, Any]:
        """Leave the points that are not plainly ok without a filling."""
        only = {"condition": {"test": "datum.verdict === 'ok'", "value": 1}, "value": 0}
        return {"fill": {**self._identity()["color"], "legend": None}, "fillOpacity": only}

    def _dash(self) -> dict[str, Any]:
        dash = {"field": "run", "type": "nominal", "legend": {"title": None, "symbolType": "stroke"}}
        return {"strokeDash": dash} if self.several else {}

    def lines(self, kind: str, quantity: Quantity, points: Sequence[Mapping[str, Any]], axis: Axis) -> dict[str, Any]:
        """Return a line per implementation against the swept size, with intervals."""
        values = sorted({point["size"] for point in points})
        ticks = {"values": values} if len(values) <= MOST_TICKS else {}
        log = min(values) > 0 and values[-1] / values[0] >= LOG_FROM
        x = {
            "field": "size",
            "type": "quantitative",
            "title": axis.name,
            "scale": {"type": "log", "base": 2, "nice": False} if log else {"zero": False, "nice": False},
            "axis": {"labelExpr": SIZE_LABEL, "labelOverlap": "greedy", "grid": False, **ticks},
        }
        y = {"field": kind, "type": "quantitative", "title": _title(quantity), **_scale(kind, points)}
        ends = {"y": {**y, "field": f"{kind}_low"}, "y2": {"field": f"{kind}_high"}}
        whole = f"isValid(datum.{kind}_low) && isValid(datum.{kind}_high)"
        pick = {"name": "pick", "select": {"type": "point", "fields": ["implementation"]}, "bind": "legend"}
        each = {"detail": {"field": "run"}}
        return {
            "encoding": {"x": x, **self._identity()},
            "layer": [
                {
                    "params": [pick],
                    "mark": {"type": "line", "strokeWidth": 2},
                    "encoding": {"y": y, **each, **self._dash()},
                },
                *_base(kind),
                {
                    "transform": [{"filter": whole}],
                    "mark": {"type": "rule", "strokeWidth": 5, "strokeOpacity": 0.45},
                    "encoding": ends,
                },
                {
                    "mark": {"type": "point", "size": 36, "strokeWidth": 1.5},
                    "encoding": {"y": y, **self._filling(), "tooltip": self._tooltip(kind, quantity, axis.name)},
                },
            ],
        }

    def bars(self, kind: str, quantity: Quantity, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a bar per implementation, with intervals, where nothing is swept."""
        x = {"field": kind, "type": "quantitative", "title": _title(quantity), "axis": _ticks(quantity), "stack": None}
        whole = f"isValid(datum.{kind}_low) && isValid(datum.{kind}_high)"
        ends = {"x": {**x, "field": f"{kind}_low"}, "x2": {"field": f"{kind}_high"}}
        order = sorted(points, key=lambda point: point[kind], reverse=kind != "time")
        y: dict[str, Any] = {"field": "implementation", "type": "nominal", "title": None}
        y |= {"sort": list(dict.fromkeys(point["implementation"] for point in order)), "axis": {"labelLimit": 180}}
        offset = {"yOffset": {"field": "run", "type": "nominal"}} if self.several else {}
        colour = {"color": {**self._identity()["color"], "legend": None}}
        tooltip = self._tooltip(kind, quantity, "")
        return {
            "encoding": {"y": y, **offset},
            "layer": [
                {
                    "mark": {"type": "bar", "fillOpacity": 0.75, "height": {"band": 0.7}},
                    "encoding": {"x": x, **colour, "tooltip": tooltip},
                },
                {"transform": [{"filter": whole}], "mark": {"type": "rule", "strokeWidth": 2}, "encoding": ends},
            ],
        }

    def _tooltip(self, kind: str, quantity: Quantity, axis: str) -> list[dict[str, Any]]:
        unit = f" ({quantity.unit})" if quantity.unit else ""
        shape = ".4~s" if quantity.unit else ".4~r"
        figures = {kind: quantity.name, f"{kind}_low": "95 % interval from", f"{kind}_high": "to"}
        found: list[dict[str, Any]] = [
            {"field": "implementation", "type": "nominal"},
            *([{"field": "run", "type": "nominal"}] if self.several else []),
            *([{"field": "size", "type": "quantitative", "title": axis, "format": "d"}] if axis else []),
            *(
                {"field": name, "type": "quantitative", "title": f"{title}{unit}", "format": shape}
                for name, title in figures.items()
            ),
            {"field": "verdict", "type": "nominal"},
        ]
        return found

    def roofline(self, points: Sequence[Mapping[str, Any]], peaks: _Peaks) -> dict[str, Any]:
        """Return operations per second against operations per byte, below the measured peak."""
        x: dict[str, Any] = {"field": "intensity", "type": "quantitative"}
        x |= {"title": "operations per byte of minimum traffic"}
        y: dict[str, Any] = {"field": "rate", "type": "quantitative", "title": "FLOP/s", "axis": _ticks(OPERATIONS)}
        x |= {"scale": {"type": "log", "nice": False}, "axis": {"grid": False, "format": "~r", "labelOverlap": True}}
        y |= {"scale": {"type": "log", "nice": False, "padding": 12}}
        several = len({point["workload"] for point in points}) > 1
        shape: dict[str, Any] = {"field": "workload", "type": "nominal", "legend": {"title": None}}
        shapes = {"shape": shape} if several else {}
        limits = {"values": peaks.points([point["intensity"] for point in points])}
        pick = {"name": "pick", "select": {"type": "point", "fields": ["implementation"]}, "bind": "legend"}
        tooltip: list[dict[str, Any]] = [
            {"field": "case", "type": "nominal"},
            *([{"field": "run", "type": "nominal"}] if self.several else []),
            {"field": "rate", "type": "quantitative", "title": "FLOP/s", "format": ".4~s"},
            {"field": "intensity", "type": "quantitative", "title": "operations per byte", "format": ".3~r"},
            {"field": "peak", "type": "quantitative", "title": "% of measured peak", "format": ".0f"},
        ]
        return {
            "layer": [
                {
                    "data": limits,
                    "mark": {"type": "line", "color": "#7a7f87", "strokeWidth": 2.5},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "params": [pick],
                    "mark": {"type": "point", "filled": True, "size": 55},
                    "encoding": {"x": x, "y": y, **self._identity(), **shapes, "tooltip": tooltip},
                },
            ]
        }


def _title(quantity: Quantity) -> str:
    return f"{quantity.name} ({quantity.unit})" if quantity.unit else quantity.name


def _ticks(quantity: Quantity) -> dict[str, Any]:
    return {"format": "~s" if quantity.unit else "~r", "labelOverlap": True}


def _scale(kind: str, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scale of the vertical axis: logarithmic if the values differ by much, else from 0."""
    values = [point[kind] for point in points]
    log = max(values) / min(values) >= LOG_FROM
    scale = {"type": "log", "nice": False, "padding": 12} if log else {"zero": True}
    return {"scale": scale, "axis": _ticks(SPEEDUP if kind == "speedup" else TIME)}


def _base(kind: str) -> list[dict[str, Any]]:
    """Return the line of the baseline, whose speed-up is 1."""
    if kind != "speedup":
        return []
    mark = {"type": "rule", "strokeDash": [4, 4], "color": "#7a7f87"}
    none = {"value": None}
    return [{"data": {"values": [{"one": 1}]}, "mark": mark, "encoding": {"y": {"datum": 1}, "x": none, "color": none}}]


@dataclass(frozen=True)
class _Peaks:
    """Measured peaks of a GPU for one type; None where no row tells."""

    bytes_per_s: float | None
    flop_per_s: float | None

    @property
    def text(self) -> str:
        known = {"B/s": self.bytes_per_s, "FLOP/s": self.flop_per_s}
        return ", ".join(figure(value, unit, digits=3) for unit, value in known.items() if value)

    def points(self, intensities: Sequence[float]) -> list[dict[str, float]]:
        """Return the corners of the limit over ``intensities`` and somewhat beyond."""
        low, high = min(intensities) / 2, max(intensities) * 2
        slope, top = self.bytes_per_s, self.flop_per_s
        ridge = [top / slope] if slope and top else []
        if ridge:
            low, high = min(low, ridge[0] / 4), max(high, ridge[0] * 4)
        limits = {x: min(x * slope if slope else math.inf, top or math.inf) for x in sorted({low, *ridge, high})}
        return [{"intensity": x, "rate": y} for x, y in limits.items()]


def _rooflines(drawn: Sequence[tuple[str, Line]], names: Names, look: _Look) -> Iterator[Chart]:
    """Yield a roofline for each GPU and type whose measured peak is known from the rows."""
    groups: dict[tuple[str, str], list[tuple[str, Line]]] = {}
    for run, line in drawn:
        if _number(line.value("pct_of_measured_peak")) and _number(line.value("intensity")) and _number(line.tflops):
            fields = line.row.case.workload.fields
            kind = f"{fields.get('dtype') or ''}{' tf32' * (fields.get('tf32') is True)}".strip()
            groups.setdefault((line.row.device, kind), []).append((run, line))
    for (device, kind), some in groups.items():
        peaks = _Peaks(_peak(some, "memory", "gbps", 1e9), _peak(some, "compute", "tflops", 1e12))
        data = [
            {
                "implementation": names.impl(line.row.case),
                "case": names.case(line.row.case),
                "workload": line.row.case.workload.name,
                "run": run,
                "intensity": float(f"{line.value('intensity'):.4g}"),
                "rate": float(f"{(line.tflops or 0.0) * 1e12:.4g}"),
                "peak": float(f"{line.value('pct_of_measured_peak'):.3g}"),
            }
            for run, line in some
        ]
        if data and (peaks.bytes_per_s or peaks.flop_per_s):
            title = f"Roofline of {device} {kind}; measured peak: {peaks.text}"
            group, spec = f"{device} {kind}", look.roofline(data, peaks)
            yield Chart(slug(f"roofline-{group}"), title, "roofline", group, "", data, spec)


def _peak(drawn: Sequence[tuple[str, Line]], bound: str, rate: str, factor: float) -> float | None:
    """Return the measured peak that cases bound by memory or by computing were compared with."""
    found = []
    for _, line in drawn:
        if (line.value("bound") or "memory") == bound and (own := line.value(rate)):
            found.append(100 * own * factor / line.value("pct_of_measured_peak"))
    return median(found) if found else None


def slug(text: str) -> str:
    """Return ``text`` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-.")[:120] or "chart"


def target(runs: Sequence[Run], output: Path | None, ending: str) -> Path:
    """Return where to write a report: ``output``, else a file in the current folder that is named by the first run.

    Raises BadInput if that is in the folder of a run, which stays as it is.
    """
    more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
    path = output or Path(f"{slug('-'.join(runs[0].folder.resolve().parts[-2:]))}{more}{ending}")
    for run in runs:
        if path.resolve().is_relative_to(run.folder.resolve()):
            raise BadInput(
                f"{path}: it is in the folder of the run, which a report leaves as it is; give --output PATH"
            )
    return path


def write(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, and make its folder. Raises BadInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror or error}); give --output PATH") from None


def images(runs: Sequence[Run], output: Path | None, ending: str) -> list[Path]:
    """Write each chart as ``.png`` or ``.svg`` into the folder ``output``, and return the files. Raises BadInput."""
    package, found = convert(), charts(runs)
    if not found:
        raise BadInput(f"{runs[0].folder}: no result is correct and has a time, so there is nothing to draw")
    folder = target(runs, output, f"-{ending.removeprefix('.')}")
    if folder.suffix == ending or folder.is_file():
        raise BadInput(f"--output {folder}: give a folder; there are {len(found)} charts, one file each")
    files = []
    for chart in found:
        drawn = getattr(package, f"vegalite_to_{ending.removeprefix('.')}")(chart.whole(), **DRAWN[ending])
        files.append(folder / f"{chart.name}{ending}")
        write(files[-1], drawn if isinstance(drawn, bytes) else drawn.encode())
    return files
