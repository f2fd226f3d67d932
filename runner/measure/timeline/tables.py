"""Figures and tables of recorded calls: kernels, operations, parts, CUDA API calls, copies and gaps.

Every number is a mean per call. Times are in microseconds.
"""

import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...records.case import Scalar
from ...records.columns import Column
from ...records.figures import figure, unit_of
from ...records.grouping import grouped
from ...records.plain_text import shortened, text_table
from ...timing.statistics import trimmed_mean
from ...timing.timeline import covered, gaps, whole
from .. import CALL, SUMMARY, write_csv
from ..parts import PHASES
from . import ApiCall, Event

Record = dict[str, Any]  # column → cell

LONGEST_NAME = 60
LEAST_PCT = 0.1  # least share of the time for a line of the summary
WHAT = "kernels, copies and fills of a call"
# Prefixes in the name of a C++ kernel.
NOISE = ("void ", "at::native::", "at::detail::", "(anonymous namespace)::", "<unnamed>::", "std::")
OTHERS = ("norms", "attention", "projections", "mlp", "loss")
PARTS = {  # column → description
    f"profile_{part}_us": Column("us", f"time of kernels in {part}{more}; on a CPU of operations")
    for part, more in ({**dict.fromkeys(PHASES, ""), **dict.fromkeys(OTHERS, " and in its backward")}).items()
}
SHOWN = {  # table → its columns in summary.txt; its file has more
    "parts": ("part", "count", "host_us", "gpu_us", "gpu_busy_us"),
    "kernels": ("op", "shapes", "kernel", "count", "gpu_us", "share_pct", "launch_us", "launch_to_start_us"),
    "ops": ("op", "shapes", "count", "self_host_us", "host_us", "self_host_pct"),
    "api": ("api", "part", "count", "mean_us", "host_us"),
    "copies": ("copy", "part", "count", "bytes", "gpu_us", "gbps"),
    "gaps": ("after", "before", "count", "mean_us", "idle_us"),
    "costs": ("op", "shapes", "count", "memory_bytes", "flops"),
}


def columns(tool: str, name: str) -> dict[str, Column]:
    """Return the columns for a call under ``tool`` (profile | nsys), whose full name is ``name``."""
    declared = {
        "gpu_us": Column("us", f"time of one call in which a kernel, copy or fill ran, by {name}: trimmed mean"),
        "kernels": Column("", f"kernels, copies and fills of one call, by {name}"),
        "busy_pct": Column("%", "that time relative to the time from the first kernel's start to the last one's end"),
        "idle_us": Column("us", "time of one call between the first and the last kernel in which none ran"),
        "longest_gap_us": Column("us", "longest time within a call in which no kernel ran; median of the calls"),
        "launch_us": Column("us", "host time of one CUDA call that launches work; recording slows it"),
        "launch_to_start_us": Column("us", "from the end of a launch to the start of its first kernel; mean"),
        "top_kernel": Column("", "kernel with the longest total time, its name shortened"),
        "top_kernel_pct": Column("%", "its share of the time of all kernels"),
        "slowdown": Column("", f"host time of a call under {name} over its host time without; 1: no slowdown"),
        "note": Column("", f"limits of the figures of {name}; empty if there are none"),
    }
    return {f"{tool}_{column}": described for column, described in declared.items()}


def figures(calls: Sequence[ApiCall], tool: str) -> dict[str, Scalar]:
    """Return the values of ``columns(tool)``, from the calls in which the GPU worked."""
    works = [call.work for call in calls if call.work]
    busy_us = [covered(work) for work in works]
    span_us = [whole(work) for work in works]
    every = [event for work in works for event in work]
    kernels = grouped(every, lambda event: event.name)
    top = max(kernels, key=lambda name: _sum_us(kernels[name]))
    values: dict[str, Scalar] = {
        "gpu_us": trimmed_mean(busy_us),
        "kernels": statistics.mode(map(len, works)),
        "idle_us": trimmed_mean([span - busy for span, busy in zip(span_us, busy_us, strict=True)]),
        "busy_pct": 100 * sum(busy_us) / sum(span_us),
        "longest_gap_us": statistics.median(max((us for *_, us in gaps(work)), default=0.0) for work in works),
        "top_kernel": short(top),
        "top_kernel_pct": 100 * _sum_us(kernels[top]) / _sum_us(every),
    }
    launched = [work for work in map(_first_of_launches, works) if work]
    if launched:
        values["launch_us"] = _launch_us([event for work in launched for event in work])
        values["launch_to_start_us"] = trimmed_mean([_launch_to_start_us(work) for work in launched])
    return {f"{tool}_{column}": value for column, value in values.items()}


def tables(calls: Sequence[ApiCall], others: Sequence[ApiCall] = ()) -> dict[str, list[Record]]:
    """Return the tables that have lines, by name. ``others`` are outermost spans outside of the calls."""
    by_name = {"parts": parts(calls, others), "kernels": kernels(calls), "ops": ops(calls)}
    by_name |= {"api": api(calls), "copies": copies(calls), "gaps": gaps_between(calls)}
    return {name: lines for name, lines in by_name.items() if lines}


def kernels(calls: Sequence[ApiCall]) -> list[Record]:
    """Return a line for each operation and kernel that it launches, the longest time first."""
    works = [work for call in calls for work in call.work]
    lines, total_us = list[Record](), _sum_us(works)
    for (op, shapes, name), launches in grouped(works, lambda work: (*_op_of(work), work.name)).items():
        first, times = _first_of_launches(launches), [work.us for work in launches]
        line: Record = {"op": op, "shapes": shapes, "kernel": name, "count": len(launches) / len(calls)}
        line |= {"gpu_us": sum(times) / len(calls), "share_pct": 100 * sum(times) / total_us}
        line |= {"mean_us": statistics.mean(times), "min_us": min(times), "max_us": max(times)}
        line["launch_us"] = _launch_us(first) if first else None
        line["launch_to_start_us"] = _launch_to_start_us(first) if first else None
        lines.append(line | _common([work.details for work in launches]))
    names = dict.fromkeys(name for line in _without_empty_shapes(lines) for name in line)
    return sorted(({name: line.get(name) for name in names} for line in lines), key=lambda line: -line["gpu_us"])


def ops(calls: Sequence[ApiCall]) -> list[Record]:
    """Return a line for each operation: host time with and without the operations it calls; on a GPU, kernel time.

    Lines are sorted by kernel time, then by host time.
    """
    events = [event for call in calls for event in call.host if event.kind == "op"]
    total_us = sum(event.self_us for event in events)
    launched = grouped((work for call in calls for work in call.work), _op_of)
    lines: list[Record] = []
    for (op, shapes), same in grouped(events, lambda event: (event.name, event.shapes)).items():
        self_us = sum(event.self_us for event in same)
        # Recursive calls are in their callers' time.
        outer = [event for event in same if all(above.name != op for above in event.ancestors())]
        line: Record = {"op": op, "shapes": shapes, "count": len(same) / len(calls)}
        line |= {"self_host_us": self_us / len(calls), "host_us": _sum_us(outer) / len(calls)}
        line["self_host_pct"] = 100 * self_us / total_us if total_us else 0.0
        if launched:
            works = launched.get((op, shapes), [])
            line |= {"kernels": len(works) / len(calls), "gpu_us": _sum_us(works) / len(calls)}
        lines.append(line)
    return sorted(_without_empty_shapes(lines), key=lambda line: (-line.get("gpu_us", 0.0), -line["self_host_us"]))


def _without_empty_shapes(lines: list[Record]) -> list[Record]:
    """Remove the column ``shapes`` if the sizes of inputs were not recorded."""
    if not any(line["shapes"] for line in lines):
        for line in lines:
            del line["shapes"]
    return lines


def parts(calls: Sequence[ApiCall], others: Sequence[ApiCall] = ()) -> list[Record]:
    """Return a line for each named part of the workload, in the order of their beginnings.

    Parts of ``others`` come last; their numbers are means per occurrence.
    """
    gpu = any(call.work for call in calls)
    lines: list[Record] = []
    for group in ([*calls], *grouped(others, lambda call: call.span.name).values()):
        named = [(event, call) for call in group for event in (call.span, *call.host) if event.kind == "span"]
        named.sort(key=lambda pair: (pair[0].start, -pair[0].end))
        for name, occurrences in grouped(named, lambda pair: _path(*pair)).items():
            inside = [[w for w in call.work if event is call.span or event in w.stack] for event, call in occurrences]
            sums = {"host_us": sum(event.us for event, _ in occurrences)}
            if gpu:
                sums |= {"kernels": sum(map(len, inside)), "gpu_us": sum(map(_sum_us, inside))}
                sums |= {"gpu_busy_us": sum(map(covered, inside)), "gpu_span_us": sum(map(whole, inside))}
            means = {column: total / len(group) for column, total in sums.items()}
            lines.append({"part": name, "count": len(occurrences) / len(group), **means})
    return lines


def part_times(calls: Sequence[ApiCall]) -> dict[str, Scalar]:
    """Return ``PARTS``: phases add up to a step; so do the others with the optimizer's.

    What runs in a backward belongs to the part whose forward made the node of autograd that ran last.
    """
    times: Counter[str] = Counter()
    for call in calls:
        ops = [event for event in call.host if event.kind == "op"]
        made = {op.node: op for op in ops if not op.is_backward}
        nodes = [(op.start, made[op.node]) for op in ops if op.is_backward and op.node in made]
        for event in call.work or ops:
            names = {*_spans(event)}
            at = bisect_right(nodes, (event.launch or event).start, key=lambda node: node[0])
            if "backward" in names and at:
                names |= {*_spans(nodes[at - 1][1])}.difference(PHASES)
            times.update({f"profile_{name}_us": event.us if call.work else event.self_us for name in names})
    return {column: times[column] / len(calls) for column in PARTS if column in times}


def _path(event: Event, call: ApiCall) -> str:
    """Return the path of the part ``event``: ``call/step_0/forward``."""
    return "/".join([call.span.name, *_spans(event), *([] if event is call.span else [event.name])])


def api(calls: Sequence[ApiCall]) -> list[Record]:
    """Return a line for each function of CUDA's API and part, by host time."""
    events = [event for call in calls for event in call.host if event.kind == "api"]
    times = [((event.name, _part(event)), event.us) for event in events]
    return _lines(times, ("api", "part"), "host_us", len(calls))


def copies(calls: Sequence[ApiCall]) -> list[Record]:
    """Return a line for each kind of copy or fill and part, by time."""
    works = [work for call in calls for work in call.work if work.kind != "kernel"]
    sizes: Counter[tuple[str, str]] = Counter()
    for work in works:
        sizes[work.name, _part(work)] += int(work.details.get("bytes") or 0)
    lines = _lines([((work.name, _part(work)), work.us) for work in works], ("copy", "part"), "gpu_us", len(calls))
    for line in lines:
        line["bytes"] = sizes[line["copy"], line["part"]] / len(calls)
        line["gbps"] = line["bytes"] / line["gpu_us"] / 1e3 if line["gpu_us"] else None
    order = ("copy", "part", "bytes", "count", "gpu_us", "mean_us", "max_us", "gbps")
    return [{name: line[name] for name in order} for line in lines]


def gaps_between(calls: Sequence[ApiCall]) -> list[Record]:
    """Return a line for each pair of kernels with idle time of the GPU between them, by that time."""
    times = [((last.name, work.name), us) for call in calls for last, work, us in gaps(call.work)]
    return _lines(times, ("after", "before"), "idle_us", len(calls))


def _lines(
    times: Sequence[tuple[tuple[str, str], float]], names: tuple[str, str], column: str, calls: int
) -> list[Record]:
    """Return a line for each key of ``times``, (key, microseconds), the longest time first."""
    lines: list[Record] = []
    for key, entries in grouped(times, lambda entry: entry[0]).items():
        same = [us for _, us in entries]
        line = {**dict(zip(names, key, strict=True)), "count": len(same) / calls, column: sum(same) / calls}
        lines.append({**line, "mean_us": statistics.mean(same), "max_us": max(same)})
    return sorted(lines, key=lambda line: -line[column])


def _op_of(work: Event) -> tuple[str, str]:
    """Return the operation that launched ``work`` and the sizes of its inputs; without an operation, the part."""
    if work.op:
        return work.op.name, work.op.shapes
    spans = _spans(work)
    return f"({spans[-1]})" if spans else "", ""


def _spans(event: Event) -> list[str]:
    return [above.name for above in event.stack if above.kind == "span"]


def _part(event: Event) -> str:
    """Return the path of the part in which ``event`` happened or was launched."""
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


def _common(details: Sequence[Mapping[str, Any]]) -> Record:
    """Return the details of launches; a value that differs between them reads "various"."""
    common: Record = {}
    for name in dict.fromkeys(name for launch in details for name in launch):
        values = [launch.get(name) for launch in details]
        common[name] = values[0] if all(value == values[0] for value in values) else "various"
    return common


def note(calls: Sequence[ApiCall], benchmark: Mapping[str, Scalar]) -> str:
    """Return a note if the number of kernels differs between calls or from the ``benchmark``, else ""."""
    expected = benchmark.get("n_kernels")
    counts = sorted({len(call.work) for call in calls})
    seen = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if expected is not None and counts != [expected]:
        return f"{WHAT}: {seen} here, {expected} by the benchmark"
    return f"{WHAT}: {seen}, not the same in each call" if len(counts) > 1 else ""


def short(name: str, most: int = LONGEST_NAME) -> str:
    """Return a C++ kernel's name without its arguments and common namespaces, at most ``most`` characters."""
    name = re.sub(r"\((?!anonymous namespace\)).*\)$", "", name) if name.startswith("void ") else name
    for noise in NOISE:
        name = name.replace(noise, "")
    return shortened(name, most)


def gpu_sentences(figures: Mapping[str, Any], tool: str) -> Iterator[str]:
    """Yield the figures of ``tool`` as sentences; none on a CPU."""
    values = {name.removeprefix(f"{tool}_"): value for name, value in figures.items()}
    if "kernels" in values:
        busy, idle, gap = (figure(values[name], "us") for name in ("gpu_us", "idle_us", "longest_gap_us"))
        yield (
            f"{WHAT}: {values['kernels']}, busy for {busy} ({values['busy_pct']:.1f} % of their span), "
            f"idle for {idle}, longest gap {gap}"
        )
    if "launch_us" in values:
        yield (
            f"a launch takes {figure(values['launch_us'], 'us', 3)} on the host; its kernel starts "
            f"{figure(values['launch_to_start_us'], 'us', 3)} later"
        )


def write(folder: Path, head: Sequence[str], by_name: Mapping[str, Sequence[Record]], rows: int, end: str = "") -> None:
    """Write the tables as CSV files, and ``head``, the first ``rows`` lines of each, and ``end`` as summary.

    The summary has no lines below ``LEAST_PCT`` of the time.
    """
    for name, table in by_name.items():
        write_csv(folder / f"{name}.csv", table)
    lines = [*head]
    for name, shown in SHOWN.items():
        if table := by_name.get(name, ()):
            columns = [column for column in shown if column in table[0]]
            left = [index for index, column in enumerate(columns) if isinstance(table[0][column], str)]
            long = [line for line in table if _share(line) >= LEAST_PCT][:rows]
            cells = [columns, *([_cell(column, line[column]) for column in columns] for line in long)]
            more = [f"  and {len(table) - len(long)} more"] if len(table) > len(long) else []
            lines += ["", *text_table(cells, left=left), *more]
    (folder / SUMMARY).write_text("\n".join([*lines, end]), encoding="utf-8")


def _share(line: Record) -> float:
    """Return the part of the time in ``line`` in percent; 100 for an operation that launches, or if it has none."""
    return 100.0 if line.get("kernels") else float(line.get("share_pct", line.get("self_host_pct", 100.0)) or 0.0)


def _cell(column: str, value: object) -> str:
    return figure(value, unit_of(column)) if isinstance(value, int | float | None) else short(str(value))
