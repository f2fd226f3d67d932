"""Profiled calls in words, for the terminal: what they say in all, and the first lines of each table. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.measure.profile.tables import SEPARATOR, Line
from runner.measure.profile.trace_figures import WHAT, short
from runner.measure.tabular import aligned

INDENT = "  "


def text(figures: Mapping[str, Any], tables: Mapping[str, Sequence[Line]], calls: int, rows: int) -> str:
    """What ``calls`` calls did: ``rows`` lines of each table. Of a CPU there is no table of kernels."""
    note = f" ({figures['profile_note']})" if figures["profile_note"] else ""
    profiler = (
        f"of one call, the mean of {calls}{note}; the profiler adds {figures['profile_overhead_pct']:.0f} % to a call"
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
            f"a launch takes {figures['launch_us']:.1f} us of the host, and what it launches begins "
            f"{figures['queue_us']:.1f} us later"
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
