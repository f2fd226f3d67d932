"""A timeline → the figures of a row, and tables. Of the calls alone, unless it says more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner import measure
from runner.experiment.case import Scalar
from runner.measure import CALL, aligned
from runner.measure.nsys.timeline import Api, Timeline, Work
from runner.timing.statistics import trimmed_mean
from runner.timing.timeline import covered, whole

Table = list[dict[str, str | int | float]]

NAMES = ("kernels", "ranges", "api", "copies", "gaps")  # of the files


def figures(timeline: Timeline) -> dict[str, Scalar]:
    """Return the figures of one call, in us: means without a fifth of the calls at each end."""
    calls = [works for works in timeline.of_call() if works]
    busy = [union_us(works) for works in calls]
    found: dict[str, Scalar] = {
        "nsys_gpu_us": trimmed_mean(busy),
        "nsys_kernels": Counter(map(len, calls)).most_common(1)[0][0],
        "nsys_idle_us": trimmed_mean([span_us(works) - own for works, own in zip(calls, busy, strict=True)]),
    }
    if ahead := [_mean(waits) for works in calls if (waits := list(launch_to_start_us(works)))]:
        found["nsys_launch_to_start_us"] = trimmed_mean(ahead)
    return found


def tables(timeline: Timeline) -> dict[str, Table]:
    """By the name of their file; those without lines are left out."""
    found = (_kernels(timeline), _ranges(timeline), _api(timeline), _copies(timeline), _gaps(timeline))
    return {name: table for name, table in zip(NAMES, found, strict=True) if table}


def write(found: Mapping[str, Table], folder: Path) -> None:
    """Each table as a CSV in ``folder``."""
    for name, table in found.items():
        measure.write(folder / f"{name}.csv", list(table[0]), table)


def union_us(works: Sequence[Work]) -> float:
    """Time covered by at least one of ``works``, which are sorted by start."""
    return covered(works) / 1e3


def span_us(works: Sequence[Work]) -> float:
    """From the start of the first to the end of the last."""
    return whole(works) / 1e3


def launch_to_start_us(works: Sequence[Work]) -> Iterator[float]:
    """Yield the time from the end of each launch to the start of its first kernel: how far the CPU runs ahead."""
    seen: set[Api] = set()
    for work in works:
        if work.launch is not None and work.launch not in seen:
            seen.add(work.launch)
            yield max(0, work.start - work.launch.end) / 1e3


def _kernels(timeline: Timeline) -> Table:
    """By time, the longest first."""
    named: dict[str, list[Work]] = {}
    for work in _in_calls(timeline):
        if work.kind == "kernel":
            named.setdefault(work.name, []).append(work)
    sum_us = sum(_us(work) for works in named.values() for work in works)
    table: Table = []
    for name, works in sorted(named.items(), key=lambda item: -sum(map(_us, item[1]))):
        each = [_us(work) for work in works]
        launches = [(work.launch.end - work.launch.start) / 1e3 for work in works if work.launch]
        table.append(
            {
                "kernel": name,
                "count": len(each),
                "per_call": _number(len(each) / len(timeline.calls)),
                "total_us": _number(sum(each)),
                "share_pct": _number(100 * sum(each) / sum_us if sum_us else 0.0),
                "mean_us": _number(_mean(each)),
                "min_us": _number(min(each)),
                "max_us": _number(max(each)),
                "launch_us": _number(_mean(launches)),
                "launch_to_start_us": _number(_mean(list(launch_to_start_us(works)))),
                **_shape(works),
            }
        )
    return table


def _shape(works: Sequence[Work]) -> dict[str, int | str]:
    """Return the launch shape of one kernel; a value that differs between launches reads "varies"."""
    return {
        name: value if all(work.shape[name] == value for work in works) else "varies"
        for name, value in works[0].shape.items()
    }


def _ranges(timeline: Timeline) -> Table:
    """Return the ranges of the whole report, those of calls first; times are means of one occurrence."""
    works: dict[int, list[Work]] = {index: [] for index in range(len(timeline.ranges))}
    for work in timeline.works:
        for index in timeline.around(work.range):
            works[index].append(work)
    named: dict[str, list[int]] = {}
    for index in works:
        named.setdefault(timeline.path(index), []).append(index)
    table: Table = []
    for name, indexes in sorted(named.items(), key=lambda item: item[0].partition("/")[0] != CALL):
        own = [works[index] for index in indexes]
        hosts = [(timeline.ranges[index].end - timeline.ranges[index].start) / 1e3 for index in indexes]
        table.append(
            {
                "range": name,
                "count": len(indexes),
                "host_us": _number(_mean(hosts)),
                "gpu_busy_us": _number(_mean([union_us(some) for some in own])),
                "gpu_sum_us": _number(_mean([sum(map(_us, some)) for some in own])),
                "gpu_span_us": _number(_mean([span_us(some) if some else 0.0 for some in own])),
                "works": _number(_mean([len(some) for some in own])),
            }
        )
    return table


def _api(timeline: Timeline) -> Table:
    """By time, each in the range that it was called in."""
    named: dict[tuple[str, str], list[float]] = {}
    calls = set(timeline.calls)
    for api in timeline.apis:
        if calls.intersection(timeline.around(api.range)):
            named.setdefault((api.name, timeline.path(api.range)), []).append((api.end - api.start) / 1e3)
    return [
        {"api": name, "range": place, "count": len(each), **_times(each)}
        for (name, place), each in sorted(named.items(), key=lambda item: -sum(item[1]))
    ]


def _copies(timeline: Timeline) -> Table:
    """Copies and fills by time, each in the range that it was launched in."""
    named: dict[tuple[str, str], list[Work]] = {}
    for work in _in_calls(timeline):
        if work.kind != "kernel":
            named.setdefault((work.name, timeline.path(work.range)), []).append(work)
    table: Table = []
    for (name, place), works in sorted(named.items(), key=lambda item: -sum(map(_us, item[1]))):
        each, size = [_us(work) for work in works], sum(work.size for work in works)
        rate = _number(size / sum(each) / 1e3 if sum(each) else 0.0)
        table.append(
            {"copy": name, "range": place, "count": len(each), "bytes": size, **_times(each), "gb_per_s": rate}
        )
    return table


def _gaps(timeline: Timeline) -> Table:
    """Times within a call in which the GPU did nothing, by what it did before and after."""
    named: dict[tuple[str, str], list[float]] = {}
    for works in timeline.of_call():
        last = None
        for work in works:
            if last is not None and work.start > last.end:
                named.setdefault((last.name, work.name), []).append((work.start - last.end) / 1e3)
            if last is None or work.end > last.end:
                last = work
    return [
        {"after": after, "before": before, "count": len(each), **_times(each)}
        for (after, before), each in sorted(named.items(), key=lambda item: -sum(item[1]))
    ]


def _in_calls(timeline: Timeline) -> Iterator[Work]:
    return (work for work in timeline.works if work.call is not None)


def _times(each: Sequence[float]) -> dict[str, int | float]:
    return {"total_us": _number(sum(each)), "mean_us": _number(_mean(each)), "max_us": _number(max(each))}


def _us(work: Work) -> float:
    return (work.end - work.start) / 1e3


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _number(value: float) -> int | float:
    """To a nanosecond, which is what nsys has."""
    return int(value) if value == int(value) else round(value, 3)


SHOWN, WIDEST = 8, 64  # lines of a table on the terminal, and characters of a name
RANGES = 24  # lines of ranges: those of two steps of four layers
SHOWN_COLUMNS = {  # of each table on the terminal; its file has more
    "ranges": ("range", "count", "host_us", "gpu_busy_us", "gpu_sum_us", "gpu_span_us", "works"),
    "kernels": ("kernel", "per_call", "mean_us", "share_pct", "launch_us", "launch_to_start_us"),
    "api": ("api", "range", "count", "mean_us", "total_us"),
    "copies": ("copy", "range", "count", "bytes", "mean_us", "gb_per_s"),
    "gaps": ("after", "before", "count", "mean_us", "total_us"),
}


def summary(
    head: str,
    one: Mapping[str, Scalar],
    tables: Mapping[str, Table],
    under_us: float,
    beside_us: float,
    command: str,
) -> str:
    """The text. ``one`` has the figures; a call took the host ``under_us``, and without nsys ``beside_us``."""
    works = f"in {one['nsys_kernels']} kernels, copies and fills"
    figures = [
        ("GPU busy", one["nsys_gpu_us"], works),
        ("GPU idle", one["nsys_idle_us"], "between the first and the last of them"),
        ("waited", one.get("nsys_launch_to_start_us"), "on average, from the end of a launch to the start on the GPU"),
        ("host", under_us, f"{one['nsys_slowdown']:.2f} x the {beside_us:.2f} us without nsys"),
    ]
    lines = [head, *(f"  {name:9}{value:10.2f} us  {what}" for name, value, what in figures if value is not None)]
    for name, columns in SHOWN_COLUMNS.items():
        if name in tables:
            lines += ["", *_shown(tables[name], columns, RANGES if name == "ranges" else SHOWN)]
    if one["nsys_note"]:
        lines += ["", f"note: {one['nsys_note']}"]
    return "\n".join([*lines, "", f"recorded by: {command}", "to look at: nsys-ui report.nsys-rep", ""])


def _shown(table: Table, columns: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines of ``table``: words to the left, numbers to the right."""
    lines = [list(columns), *([_cell(line[name]) for name in columns] for line in table[:most])]
    words = [place for place, name in enumerate(columns) if isinstance(table[0][name], str)]
    more = [f"  and {len(table) - most} more"] if len(table) > most else []
    return [*aligned(lines, left=words), *more]


def _cell(value: str | float) -> str:
    """As it is, but a long name, as kernels have them, only from its beginning."""
    if isinstance(value, str):
        return value if len(value) <= WIDEST else value[: WIDEST - 3] + "..."
    return str(value)
