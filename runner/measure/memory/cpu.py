"""Allocations of a call on a CPU: its allocator keeps no count, but reports each to the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from runner.kernels.spans import watched
from runner.measure import CannotMeasure
from runner.measure.memory.allocations import Allocation, Mark, Observed, held_at_peak

PART = "part of the call: "  # told from what else is recorded under a name


def observe(run: Callable[[], object], max_events: int, snapshot: Path | None) -> Observed:
    """One call of ``run``. There is no snapshot on a CPU. Raises CannotMeasure."""
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as seen,
        watched(lambda name: record_function(PART + name)),
    ):
        result = run()
        del result
    assert seen.profiler is not None
    try:
        roots = seen.profiler.kineto_results.experimental_event_tree()
    except AttributeError as error:
        raise CannotMeasure(
            f"torch {torch.__version__} does not tell of allocations; install torch 2.6 to 2.13"
        ) from error
    return _read(roots)


def _read(roots: list[Any]) -> Observed:
    """Allocations and parts in the order of time; the tree is of operators and Python functions."""
    moments: list[tuple[int, int, str, Any]] = []  # when, order, what, its event
    for event in _walk(roots):
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            moments.append((event.start_time_ns, len(moments), "memory", event))
        elif event.tag == _EventType.TorchOp and event.name.startswith(PART):
            moments.append((event.start_time_ns, len(moments), event.name.removeprefix(PART), event))
            moments.append((event.end_time_ns, len(moments), "", event))
    marks: list[Mark] = []
    changes: list[tuple[int, int]] = []
    made: dict[int, Any] = {}  # place among the changes → the allocation
    held = peak = 0
    for _, _, what, event in sorted(moments, key=lambda moment: moment[:2]):
        if what != "memory":
            marks.append(Mark(what, held, peak, len(made)))
            peak = held
            continue
        change = event.extra_fields
        if change.alloc_size > 0:
            made[len(changes)] = event
        changes.append((change.ptr, change.alloc_size))
        held += change.alloc_size
        peak = max(peak, held)
    live = held_at_peak(changes)
    allocations = [
        Allocation(event.extra_fields.alloc_size, *_from_where(event), order in live) for order, event in made.items()
    ]
    return Observed(allocations, marks, frozenset(event.extra_fields.ptr for event in made.values()))


def _walk(events: list[Any]) -> Iterator[Any]:
    waiting = list(reversed(events))
    while waiting:
        event = waiting.pop()
        yield event
        waiting += reversed(event.children)


def _from_where(event: Any) -> tuple[tuple[str, ...], str]:
    """The Python frames around ``event``, innermost first, and the outermost operator of torch within them.

    Where Python calls torch by a function, the line is that of the call; by an operator such as ``@``, it is where the
    Python function around it begins, for that is all that is recorded.
    """
    frames: list[str] = []
    operator = ""
    parent = event.parent
    while parent is not None:
        if parent.tag in (_EventType.PyCall, _EventType.PyCCall):
            if not frames and parent.tag == _EventType.PyCall:
                frames.append(_frame(parent.extra_fields.callsite))
            frames.append(_frame(parent.extra_fields.caller))
        elif parent.tag == _EventType.TorchOp and not frames and parent.name.startswith("aten::"):
            operator = parent.name
        parent = parent.parent
    return tuple(frames), operator


def _frame(state: Any) -> str:
    return f"{state.file_name}:{state.line_number} {state.function_name}"
