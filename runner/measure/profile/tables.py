"""Profiled calls as tables: by operation, by kernel, and by the parts that a workload has names for. No torch here.

Every number is of one call: a sum over all calls, divided by how many there were.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from runner.experiment.case import Scalar
from runner.measure import aligned
from runner.measure.profile.trace import Call, Event, Work
from runner.timing.statistics import trimmed_mean
from runner.timing.timeline import covered, gaps, whole

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
        return {"launch_us": None, "launch_to_start_us": None}
    return {
        "launch_us": statistics.mean(launch.us for _, launch in launched),
        "launch_to_start_us": statistics.mean(max(0.0, work.start - launch.end) for work, launch in launched),
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


LONGEST_NAME = 60
WHAT = "kernels, copies and fills of a call"
NOISE = (
    "void ",
    "at::native::",
    "at::detail::",
    "(anonymous namespace)::",
    "<unnamed>::",
    "std::",
)  # in what a C++ kernel is called


def columns(calls: Sequence[Call]) -> dict[str, Scalar]:
    """What the GPU did for ``calls``, each of which has at least one kernel; by ``runner.experiment.columns``."""
    busy = [covered(call.work) for call in calls]
    spans = [whole(call.work) for call in calls]
    kernel, kernel_us = top_kernel(calls)
    found: dict[str, Scalar] = {
        "profile_gpu_us": trimmed_mean(busy),
        "profile_kernels": statistics.mode(len(call.work) for call in calls),
        "busy_pct": 100 * sum(busy) / sum(spans),
        "idle_us": trimmed_mean([all_us - busy_us for all_us, busy_us in zip(spans, busy, strict=True)]),
        "longest_gap_us": statistics.median(max(gaps(call.work), default=0.0) for call in calls),
        "top_kernel": short(kernel),
        "top_kernel_pct": 100 * kernel_us / sum(work.event.us for call in calls for work in call.work),
    }
    launched = [(work, work.launch) for call in calls for work in call.work if work.launch]
    if launched:
        once = {id(launch): launch.us for _, launch in launched}  # a CUDA graph's launch has many kernels
        found["launch_us"] = statistics.mean(once.values())
        found["profile_launch_to_start_us"] = statistics.mean(
            max(0.0, work.start - launch.end) for work, launch in launched
        )
    return found


def top_kernel(calls: Sequence[Call]) -> tuple[str, float]:
    """The kernel, copy or fill that took longest in all, and how long, in microseconds."""
    sums: dict[str, float] = {}
    for call in calls:
        for work in call.work:
            sums[work.event.name] = sums.get(work.event.name, 0.0) + work.event.us
    return max(sums.items(), key=lambda item: item[1])


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


INDENT = "  "


def text(figures: Mapping[str, Any], tables: Mapping[str, Sequence[Line]], calls: int, rows: int) -> str:
    """What ``calls`` calls did: ``rows`` lines of each table. Of a CPU there is no table of kernels."""
    note = f" ({figures['profile_note']})" if figures["profile_note"] else ""
    profiler = (
        f"of one call, the mean of {calls}{note}; under the profiler a call takes {figures['profile_slowdown']:.2f} x"
    )
    lines = [*_on_gpu(figures), profiler]
    if "kernels" in tables:
        lines += _kernels(tables["kernels"], tables["ops"], rows)
    else:
        lines += _ops(tables["ops"], rows)
    return "\n".join([*lines, *_parts(tables["parts"]), *_costs(tables.get("costs", []), rows), ""])


def _on_gpu(figures: Mapping[str, Any]) -> Iterator[str]:
    if "profile_kernels" not in figures:
        return
    yield (
        f"{WHAT}: {figures['profile_kernels']}, in {figures['profile_gpu_us']:.4g} us, {figures['busy_pct']:.1f} % of "
        f"their span; idle in between {figures['idle_us']:.4g} us, {figures['longest_gap_us']:.4g} us at a time"
    )
    if "launch_us" in figures:
        yield (
            f"a launch takes {figures['launch_us']:.1f} us of the host, and its kernel starts "
            f"{figures['profile_launch_to_start_us']:.1f} us later"
        )


def _kernels(kernels: Sequence[Line], ops: Sequence[Line], rows: int) -> list[str]:
    """Kernels with the operations that launch them; the host's time of an operation stands beside its first kernel."""
    host_us = {_op(line): line["cpu_us"] for line in ops}
    cells = [("operation", "kernel", "count", "host us", "GPU us", "share")]
    for line in kernels[:rows]:
        op = _op(line)
        host, share = _number(host_us.pop(op, None)), f"{line['share_pct']:.1f} %"
        cells.append((op, short(line["kernel"]), _count(line), host, _number(line["gpu_us"]), share))
    return [*aligned(cells, left=(0, 1)), *_more(kernels, rows, "kernels")]


def _ops(ops: Sequence[Line], rows: int) -> list[str]:
    cells = [("operation", "count", "self us", "total us", "share")]
    for line in ops[:rows]:
        share = f"{line['self_cpu_pct']:.1f} %"
        cells.append((_op(line), _count(line), _number(line["self_cpu_us"]), _number(line["cpu_us"]), share))
    return [*aligned(cells, left=(0,)), *_more(ops, rows, "operations")]


def _parts(parts: Sequence[Line]) -> list[str]:
    """The parts, each below what it is part of; nothing if there are none."""
    if not parts:
        return []
    gpu = "gpu_us" in parts[0]
    cells = [("part", "count", "host us", *(["GPU us"] if gpu else []))]
    for line in parts:
        *above, name = line["part"].split(SEPARATOR)
        cell = (INDENT * len(above) + name, _count(line), _number(line["cpu_us"]))
        cells.append((*cell, *([_number(line["gpu_us"])] if gpu else [])))
    return ["", *aligned(cells, left=(0,))]


def _costs(costs: Sequence[Line], rows: int) -> list[str]:
    """What operations of torch take and do, as far as it was asked for; those that do nothing of it are left out."""
    names = [name for name in ("memory_bytes", "flops") if costs and name in costs[0]]
    some = [line for line in costs if any(line[name] for name in names)]
    if not some:
        return []
    cells = [("operation", "count", *(name.removeprefix("memory_") for name in names))]
    cells += [(_op(line), _count(line), *(f"{line[name]:.4g}" for name in names)) for line in some[:rows]]
    return ["", *aligned(cells, left=(0,)), *_more(some, rows, "operations")]


def _more(lines: Sequence[Line], rows: int, what: str) -> list[str]:
    return [f"{INDENT}and {len(lines) - rows} more {what}"] if len(lines) > rows else []


def _op(line: Line) -> str:
    return f"{line['op']} {line['shapes']}" if line.get("shapes") else str(line["op"])


def _count(line: Line) -> str:
    return f"{line['count']:g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
