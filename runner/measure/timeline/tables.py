"""Figures and tables of recorded calls: by kernel, operation, part, CUDA API call, copy, and gap. No torch here.

Every number is for one call: a sum over all calls, divided by their number. Times are in microseconds.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.experiment.results import figure, unit_of
from runner.measure import CALL, text_table
from runner.measure.timeline import Call, Event
from runner.timing.statistics import trimmed_mean
from runner.timing.timeline import covered, gaps, whole

T = TypeVar("T")
Line = dict[str, Any]  # column → cell

LONGEST_NAME = 60
WHAT = "kernels, copies and fills of a call"
# Prefixes in the name of a C++ kernel.
NOISE = ("void ", "at::native::", "at::detail::", "(anonymous namespace)::", "<unnamed>::", "std::")
SHOWN = {  # columns of each table in summary.txt; its file has more
    "parts": ("part", "count", "host_us", "gpu_us", "gpu_busy_us"),
    "kernels": ("op", "shapes", "kernel", "count", "gpu_us", "share_pct", "launch_us", "launch_to_start_us"),
    "ops": ("op", "shapes", "count", "self_host_us", "host_us", "self_host_pct"),
    "api": ("api", "part", "count", "mean_us", "host_us"),
    "copies": ("copy", "part", "count", "bytes", "gpu_us", "gbps"),
    "gaps": ("after", "before", "count", "mean_us", "idle_us"),
    "costs": ("op", "shapes", "count", "memory_bytes", "flops"),
}


def columns(tool: str, name: str) -> dict[str, Column]:
    """Return the columns of what ``tool``, whose full name is ``name``, saw the GPU do in a call."""
    declared = {
        "gpu_us": Column("us", f"time of one call in which a kernel, copy or fill ran, by {name}: trimmed mean"),
        "kernels": Column("", f"kernels, copies and fills of one call, by {name}"),
        "busy_pct": Column("%", "that time relative to the time from the first kernel's start to the last one's end"),
        "idle_us": Column("us", "time of one call between the first and the last kernel in which none ran"),
        "longest_gap_us": Column("us", "longest time within a call in which no kernel ran; median of the calls"),
        "launch_us": Column("us", "host's time in one CUDA call that launches something; recording slows it"),
        "launch_to_start_us": Column("us", "from the end of a launch to the start of its first kernel; mean"),
        "top_kernel": Column("", "kernel with the longest total time, its name shortened"),
        "top_kernel_pct": Column("%", "its share of the time of all kernels"),
        "slowdown": Column("", f"host time of a call under {name} over that without; 1: no slowdown"),
        "note": Column("", f"limits of the figures of {name}; empty if there are none"),
    }
    return {f"{tool}_{column}": one for column, one in declared.items()}


def figures(calls: Sequence[Call], tool: str) -> dict[str, Scalar]:
    """Return the columns of ``tool`` (profile | nsys), from the calls in which the GPU worked."""
    works = [call.work for call in calls if call.work]
    busy_us = [covered(own) for own in works]
    span_us = [whole(own) for own in works]
    every = [work for own in works for work in own]
    kernels = _grouped(every, lambda work: work.name)
    top = max(kernels, key=lambda name: _sum_us(kernels[name]))
    found: dict[str, Scalar] = {
        "gpu_us": trimmed_mean(busy_us),
        "kernels": statistics.mode(map(len, works)),
        "idle_us": trimmed_mean([span - busy for span, busy in zip(span_us, busy_us, strict=True)]),
        "busy_pct": 100 * sum(busy_us) / sum(span_us),
        "longest_gap_us": statistics.median(max(gaps(own), default=0.0) for own in works),
        "top_kernel": short(top),
        "top_kernel_pct": 100 * _sum_us(kernels[top]) / _sum_us(every),
    }
    launched = [own for own in map(_first_of_launches, works) if own]
    if launched:
        found["launch_us"] = _launch_us([work for own in launched for work in own])
        found["launch_to_start_us"] = trimmed_mean([_launch_to_start_us(own) for own in launched])
    return {f"{tool}_{column}": value for column, value in found.items()}


def tables(calls: Sequence[Call], others: Sequence[Call] = ()) -> dict[str, list[Line]]:
    """Return every table that has lines, by its name; ``others`` are outermost spans outside of the calls."""
    found = {
        "parts": parts(calls, others),
        "kernels": kernels(calls),
        "ops": ops(calls),
        "api": api(calls),
        "copies": copies(calls),
        "gaps": gaps_between(calls),
    }
    return {name: lines for name, lines in found.items() if lines}


def kernels(calls: Sequence[Call]) -> list[Line]:
    """Return a line for each operation and kernel that it launches, the longest time first."""
    works = [work for call in calls for work in call.work]
    lines = []
    for (op, shapes, name), some in _grouped(works, lambda work: (*_op_of(work), work.name)).items():
        own = _first_of_launches(some)
        lines.append(
            {
                "op": op,
                "shapes": shapes,
                "kernel": name,
                "count": len(some) / len(calls),
                "gpu_us": _sum_us(some) / len(calls),
                "share_pct": 100 * _sum_us(some) / _sum_us(works),
                "mean_us": statistics.mean(work.us for work in some),
                "min_us": min(work.us for work in some),
                "max_us": max(work.us for work in some),
                "launch_us": _launch_us(own) if own else None,
                "launch_to_start_us": _launch_to_start_us(own) if own else None,
                **_common([work.details for work in some]),
            }
        )
    names = dict.fromkeys(name for line in _without_empty_shapes(lines) for name in line)
    return sorted(({name: line.get(name) for name in names} for line in lines), key=lambda line: -line["gpu_us"])


def ops(calls: Sequence[Call]) -> list[Line]:
    """Return a line for each operation: host time with and without the operations it calls; on a GPU, kernel time.

    Sorted by the kernels' time, then by the host's own.
    """
    events = [event for call in calls for event in call.host if event.kind == "op"]
    total_us = sum(event.self_us for event in events)
    launched = _grouped((work for call in calls for work in call.work), _op_of)
    lines: list[Line] = []
    for (op, shapes), some in _grouped(events, lambda event: (event.name, event.shapes)).items():
        self_us = sum(event.self_us for event in some)
        line: Line = {"op": op, "shapes": shapes, "count": len(some) / len(calls)}
        line["self_host_us"] = self_us / len(calls)
        outer = [event for event in some if all(above.name != op for above in event.ancestors())]  # not recursive
        line["host_us"] = sum(event.us for event in outer) / len(calls)
        line["self_host_pct"] = 100 * self_us / total_us if total_us else 0.0
        if launched:
            own = launched.get((op, shapes), [])
            line |= {"kernels": len(own) / len(calls), "gpu_us": _sum_us(own) / len(calls)}
        lines.append(line)
    return sorted(_without_empty_shapes(lines), key=lambda line: (-line.get("gpu_us", 0.0), -line["self_host_us"]))


def _without_empty_shapes(lines: list[Line]) -> list[Line]:
    """Remove the column ``shapes`` where the sizes of inputs were not recorded."""
    if not any(line["shapes"] for line in lines):
        for line in lines:
            del line["shapes"]
    return lines


def parts(calls: Sequence[Call], others: Sequence[Call] = ()) -> list[Line]:
    """Return a line for each named part of the workload, in the order in which they begin.

    The parts of ``others``, which are outside of all calls, come last; their numbers are for one occurrence.
    """
    gpu = any(call.work for call in calls)
    lines: list[Line] = []
    for some in ([*calls], *_grouped(others, lambda call: call.span.name).values()):
        named = [(event, call) for call in some for event in (call.span, *call.host) if event.kind == "span"]
        named.sort(key=lambda pair: (pair[0].start, -pair[0].end))
        for name, own in _grouped(named, lambda pair: _path(pair[1], pair[0])).items():
            line: Line = {"part": name, "count": len(own) / len(some)}
            line["host_us"] = sum(event.us for event, _ in own) / len(some)
            if gpu:
                inside = [
                    [work for work in call.work if event is call.span or event in work.stack] for event, call in own
                ]
                line["kernels"] = sum(map(len, inside)) / len(some)
                line["gpu_us"] = sum(map(_sum_us, inside)) / len(some)
                line["gpu_busy_us"] = sum(map(covered, inside)) / len(some)
                line["gpu_span_us"] = sum(whole(works) for works in inside if works) / len(some)
            lines.append(line)
    return lines


def _path(call: Call, event: Event) -> str:
    """Return the part that ``event`` is: ``call/step_0/forward``."""
    return "/".join([call.span.name, *_spans(event), *([] if event is call.span else [event.name])])


def api(calls: Sequence[Call]) -> list[Line]:
    """Return a line for each function of CUDA's API and part in which it was called, by the host's time."""
    events = [event for call in calls for event in call.host if event.kind == "api"]
    found = [((event.name, _part(event)), event.us) for event in events]
    return _lines(found, ("api", "part"), "host_us", len(calls))


def copies(calls: Sequence[Call]) -> list[Line]:
    """Return a line for each kind of copy or fill and part in which it was launched, by time."""
    works = [work for call in calls for work in call.work if work.kind != "kernel"]
    sizes = _grouped(works, lambda work: (work.name, _part(work)))
    lines = _lines([((work.name, _part(work)), work.us) for work in works], ("copy", "part"), "gpu_us", len(calls))
    for line in lines:
        size = sum(int(work.details.get("bytes") or 0) for work in sizes[line["copy"], line["part"]]) / len(calls)
        line["bytes"] = size
        line["gbps"] = size / line["gpu_us"] / 1e3 if line["gpu_us"] else None
    order = ("copy", "part", "bytes", "count", "gpu_us", "mean_us", "max_us", "gbps")
    return [{name: line[name] for name in order} for line in lines]


def gaps_between(calls: Sequence[Call]) -> list[Line]:
    """Return a line for each pair of kernels with idle time of the GPU between them in a call, by that time."""
    found = []
    for call in calls:
        last: Event | None = None
        for work in call.work:
            if last is not None and work.start > last.end:
                found.append(((last.name, work.name), work.start - last.end))
            if last is None or work.end > last.end:
                last = work
    return _lines(found, ("after", "before"), "idle_us", len(calls))


def _lines(
    times: Sequence[tuple[tuple[str, str], float]], names: tuple[str, str], column: str, calls: int
) -> list[Line]:
    """Return a line for each key of ``times``, (key, microseconds), the longest time first."""
    lines = [
        {
            **dict(zip(names, key, strict=True)),
            "count": len(some) / calls,
            column: sum(us for _, us in some) / calls,
            "mean_us": statistics.mean(us for _, us in some),
            "max_us": max(us for _, us in some),
        }
        for key, some in _grouped(times, lambda one: one[0]).items()
    ]
    return sorted(lines, key=lambda line: -line[column])


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    """Return ``items`` by ``key``; keys are in the order of their first item."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _op_of(work: Event) -> tuple[str, str]:
    """Return the operation that launched ``work`` and the sizes of its inputs; without an operation, the part."""
    if work.op:
        return work.op.name, work.op.shapes
    spans = _spans(work)
    return f"({spans[-1]})" if spans else "", ""


def _spans(event: Event) -> list[str]:
    return [above.name for above in event.stack if above.kind == "span"]


def _part(event: Event) -> str:
    """Return the part of a call that ``event`` is in, or was launched in."""
    return "/".join([CALL, *_spans(event)])


def _sum_us(works: Iterable[Event]) -> float:
    return sum(work.us for work in works)


def _first_of_launches(works: Sequence[Event]) -> list[Event]:
    """Return the first kernel of each launch. The launch of a CUDA graph has many."""
    return list({id(work.launch): work for work in reversed(works) if work.launch}.values())[::-1]


def _launch_us(works: Sequence[Event]) -> float:
    return statistics.mean(work.launch.us for work in works if work.launch)


def _launch_to_start_us(works: Sequence[Event]) -> float:
    return statistics.mean(max(0.0, work.start - work.launch.end) for work in works if work.launch)


def _common(details: Sequence[Mapping[str, Any]]) -> Line:
    """Return the details that all launches share; a value that differs reads "various"."""
    names = dict.fromkeys(name for one in details for name in one)
    values = {name: [one.get(name) for one in details] for name in names}
    return {name: some[0] if all(one == some[0] for one in some) else "various" for name, some in values.items()}


def note(calls: Sequence[Call], benchmark: Mapping[str, Scalar]) -> str:
    """Return how the numbers of kernels differ from each other, or from the figures of ``benchmark``; else ""."""
    expected = benchmark.get("n_kernels")
    counts = sorted({len(call.work) for call in calls})
    seen = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if expected is not None and counts != [expected]:
        return f"{WHAT}: {seen} here, {expected} by the benchmark"
    return f"{WHAT}: {seen}, not the same each time" if len(counts) > 1 else ""


def short(name: str) -> str:
    """Return a C++ kernel's name without its arguments and common namespaces, at most 60 characters."""
    name = re.sub(r"\((?!anonymous namespace\)).*\)$", "", name) if name.startswith("void ") else name
    for noise in NOISE:
        name = name.replace(noise, "")
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def gpu_sentences(figures: Mapping[str, Any], tool: str) -> Iterator[str]:
    """Yield the figures of ``tool`` as sentences; nothing on a CPU."""
    one = {name.removeprefix(f"{tool}_"): value for name, value in figures.items()}
    if "kernels" in one:
        busy, idle, gap = (figure(one[name], "us") for name in ("gpu_us", "idle_us", "longest_gap_us"))
        yield (
            f"{WHAT}: {one['kernels']}, busy for {busy} ({one['busy_pct']:.1f} % of their span), "
            f"idle for {idle}, longest gap {gap}"
        )
    if "launch_us" in one:
        yield (
            f"a launch takes {figure(one['launch_us'], 'us', 3)} on the host; its kernel starts "
            f"{figure(one['launch_to_start_us'], 'us', 3)} later"
        )


def summary(head: Sequence[str], found: Mapping[str, Sequence[Line]], rows: int) -> str:
    """Return ``head`` and the first ``rows`` lines of each table as text."""
    lines = [*head]
    for name, wanted in SHOWN.items():
        if table := found.get(name):
            columns = [column for column in wanted if column in table[0]]
            words = [place for place, column in enumerate(columns) if isinstance(table[0][column], str)]
            cells = [columns, *([_cell(column, line[column]) for column in columns] for line in table[:rows])]
            more = [f"  and {len(table) - rows} more"] if len(table) > rows else []
            lines += ["", *text_table(cells, left=words), *more]
    return "\n".join([*lines, ""])


def _cell(column: str, value: object) -> str:
    return figure(value, unit_of(column)) if isinstance(value, int | float | None) else short(str(value))
