"""Profiled calls as tables: by operation, by kernel, and by the parts that a workload has names for. No torch here.

Every number is of one call: a sum over all calls, divided by how many there were.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from runner.measure.profile.trace import Call, Event, Work

T = TypeVar("T")
Line = dict[str, Any]  # column → cell
SEPARATOR = " / "  # between a part and what it is part of


def kernels(calls: Sequence[Call], *, shapes: bool) -> list[Line]:
    """A line for each operation and kernel that it launches, those that take longest first.

    ``shapes``: operations on inputs of other sizes have lines of their own.
    """
    works = [work for call in calls for work in call.work]
    total_us = sum(work.event.us for work in works)
    lines = [
        {
            "op": op,
            **({"shapes": sizes} if shapes else {}),
            "kernel": name,
            "count": len(some) / len(calls),
            "gpu_us": sum(work.event.us for work in some) / len(calls),
            "share_pct": 100 * sum(work.event.us for work in some) / total_us,
            "mean_us": statistics.mean(work.event.us for work in some),
            "min_us": min(work.event.us for work in some),
            "max_us": max(work.event.us for work in some),
            **_of_launches(some),
            **_of_details([work.event.details for work in some]),
        }
        for (op, sizes, name), some in grouped(works, lambda work: (*_of_op(work, shapes), work.event.name)).items()
    ]
    return sorted(lines, key=lambda line: -line["gpu_us"])


def ops(calls: Sequence[Call], *, shapes: bool, gpu: bool) -> list[Line]:
    """A line for each operation: its time on the host, with and without what it calls; on a GPU, that of its kernels.

    Sorted by the kernels' time, then by the host's own.
    """
    events = [event for call in calls for event, _ in call.host if event.kind == "op"]
    total_us = sum(event.self_us for event in events)
    launched = grouped((work for call in calls for work in call.work), lambda work: _of_op(work, shapes))
    lines: list[Line] = []
    for (op, sizes), some in grouped(events, lambda event: (event.name, _sizes(event) if shapes else "")).items():
        line: Line = {"op": op, **({"shapes": sizes} if shapes else {}), "count": len(some) / len(calls)}
        line["self_cpu_us"] = sum(event.self_us for event in some) / len(calls)
        line["cpu_us"] = sum(event.us for event in some if not _within(event, op)) / len(calls)
        line["self_cpu_pct"] = 100 * sum(event.self_us for event in some) / total_us if total_us else 0.0
        if gpu:
            own = launched.get((op, sizes), [])
            line |= {"kernels": len(own) / len(calls), "gpu_us": sum(work.event.us for work in own) / len(calls)}
        lines.append(line)
    return sorted(lines, key=lambda line: (-line.get("gpu_us", 0.0), -line["self_cpu_us"]))


def parts(calls: Sequence[Call], *, gpu: bool) -> list[Line]:
    """A line for each part that the workload has a name for, with what it is part of, in the order they begin in."""
    named = [
        (SEPARATOR.join([*(other.name for other in stack if other.kind == "span"), event.name]), event)
        for call in calls
        for event, stack in call.host
        if event.kind == "span"
    ]
    lines: list[Line] = []
    for name, some in grouped(sorted(named, key=lambda pair: pair[1].start), lambda pair: pair[0]).items():
        line: Line = {"part": name, "count": len(some) / len(calls)}
        line["cpu_us"] = sum(event.us for _, event in some) / len(calls)
        if gpu:
            inside = {id(event) for _, event in some}
            own = [w.event.us for call in calls for w in call.work if inside & {id(event) for event in w.stack}]
            line |= {"kernels": len(own) / len(calls), "gpu_us": sum(own) / len(calls)}
        lines.append(line)
    return lines


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    """``items`` by ``key``, in the order in which keys come."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _of_op(work: Work, shapes: bool) -> tuple[str, str]:
    """The operation that launched ``work``, with the sizes of its inputs if wanted; else the part that did."""
    if work.op:
        return work.op.name, _sizes(work.op) if shapes else ""
    part = next((event.name for event in reversed(work.stack) if event.kind == "span"), "")
    return f"({part})" if part else "", ""


def sizes_text(sizes: Sequence[Sequence[object]] | None) -> str:
    """``64x128 128``: the sizes of tensors among the inputs of an operation, without those that have none."""
    return " ".join("x".join(map(str, size)) for size in sizes or () if size)


def _sizes(op: Event) -> str:
    return sizes_text(op.details.get("Input Dims"))


def _within(event: Event, name: str) -> bool:
    """Whether some operation of that name has called it: its time is in that one's."""
    above = event.parent
    while above is not None and above.name != name:
        above = above.parent
    return above is not None


def _of_launches(works: Sequence[Work]) -> Line:
    launched = [(work, work.launch) for work in works if work.launch]
    if not launched:
        return {"launch_us": None, "queue_us": None}
    return {
        "launch_us": statistics.mean(launch.us for _, launch in launched),
        "queue_us": statistics.mean(max(0.0, work.start - launch.end) for work, launch in launched),
    }


def _of_details(details: Sequence[Mapping[str, Any]]) -> Line:
    """What the launches have in common of what the driver says."""
    names = {
        "grid": "grid",
        "block": "block",
        "registers": "registers per thread",
        "shared_bytes": "shared memory",
        "occupancy_pct": "est. achieved occupancy %",
        "bytes": "bytes",  # of a copy or fill
        "stream": "stream",
    }
    return {column: _common([_word(one.get(name)) for one in details]) for column, name in names.items()}


def _word(value: object) -> object:
    return "x".join(map(str, value)) if isinstance(value, list) else value


def _common(values: Sequence[object]) -> object:
    return values[0] if all(value == values[0] for value in values) else "various"
