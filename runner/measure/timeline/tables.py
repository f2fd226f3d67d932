"""Calls as figures and tables: by kernel, operation, part, call of CUDA's API, copy, and gap. No torch here.

Every number is of one call: a sum over all calls, divided by how many there were. Times are in microseconds.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from runner import measure
from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.measure import CALL, aligned
from runner.measure.timeline import Call, Event, Work
from runner.timing.statistics import trimmed_mean
from runner.timing.timeline import covered, gaps, whole

T = TypeVar("T")
Line = dict[str, Any]  # column → cell

SEPARATOR = "/"  # between a part and what it is part of
DIGITS = 6  # of a time in a file; adding up makes more
LONGEST_NAME = 60
WHAT = "kernels, copies and fills of a call"
NOISE = (  # in what a C++ kernel is called
    "void ",
    "at::native::",
    "at::detail::",
    "(anonymous namespace)::",
    "<unnamed>::",
    "std::",
)
SHOWN = {  # of each table in summary.txt; its file has more
    "parts": ("part", "count", "host_us", "gpu_us", "gpu_busy_us"),
    "kernels": ("op", "shapes", "kernel", "count", "gpu_us", "share_pct", "launch_us", "launch_to_start_us"),
    "ops": ("op", "shapes", "count", "self_host_us", "host_us", "self_host_pct"),
    "api": ("api", "part", "count", "mean_us", "host_us"),
    "copies": ("copy", "part", "count", "bytes", "gpu_us", "gbps"),
    "gaps": ("after", "before", "count", "mean_us", "idle_us"),
    "costs": ("op", "shapes", "count", "memory_bytes", "flops"),
}


def columns(tool: str, name: str) -> dict[str, Column]:
    """Return the columns of what ``tool``, which people call ``name``, saw the GPU do in a call."""
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
    """What the GPU did in a call, by the columns of ``tool`` (profile | nsys). Calls without kernels are left out."""
    calls = [call for call in calls if call.work]
    busy = [covered(call.work) for call in calls]
    spans = [whole(call.work) for call in calls]
    found: dict[str, Scalar] = {
        f"{tool}_gpu_us": trimmed_mean(busy),
        f"{tool}_kernels": statistics.mode(len(call.work) for call in calls),
        f"{tool}_idle_us": trimmed_mean([all_us - busy_us for all_us, busy_us in zip(spans, busy, strict=True)]),
        f"{tool}_busy_pct": 100 * sum(busy) / sum(spans),
        f"{tool}_longest_gap_us": statistics.median(max(gaps(call.work), default=0.0) for call in calls),
    }
    kernels = grouped((work for call in calls for work in call.work), lambda work: work.event.name)
    longest, some = max(kernels.items(), key=lambda item: _sum_us(item[1]))
    found |= {f"{tool}_top_kernel": short(longest), f"{tool}_top_kernel_pct": 100 * _sum_us(some) / _all_us(calls)}
    launches = [_launches(call.work) for call in calls]
    if any(launches):
        found[f"{tool}_launch_us"] = statistics.mean(work.launch.us for own in launches for work in own)  # type: ignore[union-attr]
        found[f"{tool}_launch_to_start_us"] = trimmed_mean([_ahead_us(own) for own in launches if own])
    return found


def tables(
    calls: Sequence[Call], others: Sequence[Call] = (), *, shapes: bool = False, gpu: bool = True
) -> dict[str, list[Line]]:
    """Every table that has lines, by its name. ``shapes``: operations on inputs of other sizes are told apart."""
    found = {
        "parts": parts(calls, others, gpu=gpu),
        "kernels": kernels(calls, shapes=shapes),
        "ops": ops(calls, shapes=shapes, gpu=gpu),
        "api": api(calls),
        "copies": copies(calls),
        "gaps": between(calls),
    }
    return {name: lines for name, lines in found.items() if lines}


def kernels(calls: Sequence[Call], *, shapes: bool) -> list[Line]:
    """A line for each operation and kernel that it launches, those that take longest first."""
    works = [work for call in calls for work in call.work]
    lines = [
        {
            "op": op,
            **({"shapes": sizes} if shapes else {}),
            "kernel": name,
            "count": len(some) / len(calls),
            "gpu_us": _sum_us(some) / len(calls),
            "share_pct": 100 * _sum_us(some) / _all_us(calls),
            "mean_us": statistics.mean(work.event.us for work in some),
            "min_us": min(work.event.us for work in some),
            "max_us": max(work.event.us for work in some),
            "launch_us": statistics.mean(work.launch.us for work in own) if (own := _launches(some)) else None,  # type: ignore[union-attr]
            "launch_to_start_us": _ahead_us(own) if own else None,
            **_common([work.event.details for work in some]),
        }
        for (op, sizes, name), some in grouped(works, lambda work: (*_of_op(work, shapes), work.event.name)).items()
    ]
    columns = dict.fromkeys(name for line in lines for name in line)
    return sorted(({name: line.get(name) for name in columns} for line in lines), key=lambda line: -line["gpu_us"])


def ops(calls: Sequence[Call], *, shapes: bool, gpu: bool) -> list[Line]:
    """A line for each operation: its time on the host, with and without what it calls; on a GPU, that of its kernels.

    Sorted by the kernels' time, then by the host's own.
    """
    events = [event for call in calls for event, _ in call.host if event.kind == "op"]
    total_us = sum(event.self_us for event in events)
    launched = grouped((work for call in calls for work in call.work), lambda work: _of_op(work, shapes))
    lines: list[Line] = []
    for (op, sizes), some in grouped(events, lambda event: (event.name, event.shapes if shapes else "")).items():
        line: Line = {"op": op, **({"shapes": sizes} if shapes else {}), "count": len(some) / len(calls)}
        line["self_host_us"] = sum(event.self_us for event in some) / len(calls)
        line["host_us"] = sum(event.us for event in some if not _within(event, op)) / len(calls)
        line["self_host_pct"] = 100 * sum(event.self_us for event in some) / total_us if total_us else 0.0
        if gpu:
            own = launched.get((op, sizes), [])
            line |= {"kernels": len(own) / len(calls), "gpu_us": _sum_us(own) / len(calls)}
        lines.append(line)
    return sorted(lines, key=lambda line: (-line.get("gpu_us", 0.0), -line["self_host_us"]))


def parts(calls: Sequence[Call], others: Sequence[Call] = (), *, gpu: bool) -> list[Line]:
    """A line for each part that the workload has a name for, below what it is part of, in the order they begin in.

    Those of ``others``, which are outside of all calls, come last; their numbers are of one occurrence.
    """
    lines: list[Line] = []
    for some in ([*calls], *grouped(others, lambda call: call.span.name).values()):
        named = [
            (SEPARATOR.join([call.span.name, *_spans(stack), event.name]), event, call)
            for call in some
            for event, stack in call.host
            if event.kind == "span"
        ]
        named += [(call.span.name, call.span, call) for call in some]
        named.sort(key=lambda one: (one[1].start, -one[1].end))
        for name, own in grouped(named, lambda one: one[0]).items():
            line: Line = {"part": name, "count": len(own) / len(some)}
            line["host_us"] = sum(event.us for _, event, _ in own) / len(some)
            if gpu:
                inside = [_inside(event, call) for _, event, call in own]
                line["kernels"] = sum(map(len, inside)) / len(some)
                line["gpu_us"] = sum(map(_sum_us, inside)) / len(some)
                line["gpu_busy_us"] = sum(map(covered, inside)) / len(some)
                line["gpu_span_us"] = sum(whole(works) for works in inside if works) / len(some)
            lines.append(line)
    return lines


def api(calls: Sequence[Call]) -> list[Line]:
    """A line for each function of CUDA's API and part in which it was called, by the host's time."""
    found = [
        (event.name, SEPARATOR.join([CALL, *_spans(stack)]), event.us)
        for call in calls
        for event, stack in call.host
        if event.kind == "api"
    ]
    return [
        {"api": name, "part": part, **_times([us for _, _, us in some], len(calls), "host_us")}
        for (name, part), some in _longest_first(found)
    ]


def copies(calls: Sequence[Call]) -> list[Line]:
    """A line for each kind of copy or fill and part in which it was launched, by time."""
    works = [work for call in calls for work in call.work if work.event.kind != "kernel"]
    found = [(w.event.name, SEPARATOR.join([CALL, *_spans(w.stack)]), w.event.us, _bytes(w)) for w in works]
    return [
        {
            "copy": name,
            "part": part,
            "bytes": sum(one[3] for one in some) / len(calls),
            **_times([one[2] for one in some], len(calls), "gpu_us"),
            "gbps": sum(one[3] for one in some) / us / 1e3 if (us := sum(one[2] for one in some)) else None,
        }
        for (name, part), some in _longest_first(found)
    ]


def between(calls: Sequence[Call]) -> list[Line]:
    """A line for each pair of kernels between which the GPU did nothing within a call, by the time of that."""
    found = []
    for call in calls:
        last: Work | None = None
        for work in call.work:
            if last is not None and work.start > last.end:
                found.append((last.event.name, work.event.name, work.start - last.end))
            if last is None or work.end > last.end:
                last = work
    return [
        {"after": after, "before": before, **_times([one[2] for one in some], len(calls), "idle_us")}
        for (after, before), some in _longest_first(found)
    ]


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    """``items`` by ``key``, in the order in which keys come."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _longest_first(found: Sequence[tuple[Any, ...]]) -> list[tuple[Any, list[tuple[Any, ...]]]]:
    """Tuples of two names, a time and more, by their names."""
    return sorted(grouped(found, lambda one: one[:2]).items(), key=lambda item: -sum(one[2] for one in item[1]))


def _times(each: Sequence[float], calls: int, column: str) -> Line:
    return {
        "count": len(each) / calls,
        column: sum(each) / calls,
        "mean_us": statistics.mean(each),
        "max_us": max(each),
    }


def _of_op(work: Work, shapes: bool) -> tuple[str, str]:
    """The operation that launched ``work``, with the sizes of its inputs if wanted; else the part that did."""
    if work.op:
        return work.op.name, work.op.shapes if shapes else ""
    part = next((event.name for event in reversed(work.stack) if event.kind == "span"), "")
    return f"({part})" if part else "", ""


def _spans(stack: Sequence[Event]) -> list[str]:
    return [event.name for event in stack if event.kind == "span"]


def _inside(span: Event, call: Call) -> list[Work]:
    """The work of ``call`` that ``span`` has launched; of the call itself, all."""
    return [work for work in call.work if span is call.span or any(event is span for event in work.stack)]


def _within(event: Event, name: str) -> bool:
    """Whether some operation of that name has called it: its time is in that one's."""
    above = event.parent
    while above is not None and above.name != name:
        above = above.parent
    return above is not None


def _sum_us(works: Iterable[Work]) -> float:
    return sum(work.event.us for work in works)


def _all_us(calls: Sequence[Call]) -> float:
    return sum(_sum_us(call.work) for call in calls)


def _launches(works: Iterable[Work]) -> list[Work]:
    """The first kernel of each launch: that of a CUDA graph has many."""
    return list({id(work.launch): work for work in reversed([*works]) if work.launch}.values())[::-1]


def _ahead_us(works: Sequence[Work]) -> float:
    """How far the host runs ahead: the mean time from the end of a launch to the start of its first kernel."""
    return statistics.mean(max(0.0, work.start - work.launch.end) for work in works if work.launch)


def _bytes(work: Work) -> int:
    return int(work.event.details.get("bytes") or 0)


def _common(details: Sequence[Mapping[str, Any]]) -> Line:
    """What launches have in common; a value that differs reads "various"."""
    names = dict.fromkeys(name for one in details for name in one)
    values = {name: [one.get(name) for one in details] for name in names}
    return {name: some[0] if all(one == some[0] for one in some) else "various" for name, some in values.items()}


def note(calls: Sequence[Call], expected: int | None) -> str:
    """What does not fit in the kernels that were seen, ``expected`` of which the benchmark saw; empty if all does."""
    counts = sorted({len(call.work) for call in calls})
    seen = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if expected is not None and counts != [expected]:
        return f"{WHAT}: {seen} here, {expected} by the benchmark"
    return f"{WHAT}: {seen}, not the same each time" if len(counts) > 1 else ""


def short(name: str) -> str:
    """A C++ kernel's name without its arguments and the namespaces that all have: 60 characters at most."""
    name = re.sub(r"\((?!anonymous namespace\)).*\)$", "", name) if name.startswith("void ") else name
    for noise in NOISE:
        name = name.replace(noise, "")
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def write(found: Mapping[str, Sequence[Line]], folder: Path) -> None:
    """Each table as a CSV in ``folder``."""
    for name, lines in found.items():
        rounded = [{key: _rounded(cell) for key, cell in line.items()} for line in lines]
        measure.write(folder / f"{name}.csv", list(lines[0]), rounded)


def _rounded(cell: object) -> object:
    return round(cell, DIGITS) if isinstance(cell, float) else cell


def on_gpu(figures: Mapping[str, Any], tool: str) -> Iterator[str]:
    """The figures in sentences; nothing of a CPU."""
    one = {name.removeprefix(f"{tool}_"): value for name, value in figures.items()}
    if "kernels" not in one:
        return
    yield (
        f"{WHAT}: {one['kernels']}, in {one['gpu_us']:.4g} us, {one['busy_pct']:.1f} % of their span; "
        f"idle in between {one['idle_us']:.4g} us, {one['longest_gap_us']:.4g} us at a time"
    )
    if "launch_us" in one:
        yield (
            f"a launch takes {one['launch_us']:.1f} us of the host, and its kernel starts "
            f"{one['launch_to_start_us']:.1f} us later"
        )


def text(head: Sequence[str], found: Mapping[str, Sequence[Line]], rows: int) -> str:
    """``head``, and ``rows`` lines of each table: words to the left, numbers to the right."""
    lines = [*head]
    for name, wanted in SHOWN.items():
        if table := found.get(name):
            columns = [column for column in wanted if column in table[0]]
            words = [place for place, column in enumerate(columns) if isinstance(table[0][column], str)]
            cells = [columns, *([_cell(line[column]) for column in columns] for line in table[:rows])]
            more = [f"  and {len(table) - rows} more"] if len(table) > rows else []
            lines += ["", *aligned(cells, left=words), *more]
    return "\n".join([*lines, ""])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0") if value < 1e6 else f"{value:.4g}"
    return short(str(value)) if value is not None else ""
