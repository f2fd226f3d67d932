"""Recording of a call's allocations, and of what autograd saves for backward.

On a GPU, torch's allocator keeps a history if asked to. On a CPU, the allocator keeps no counts, but reports each
allocation to the profiler.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from runner.kernels.spans import watched
from runner.measure import CannotMeasure
from runner.measure.memory import Mark, Observed, Source
from runner.timing.call import all_events, cpu_allocations

Changes = list[tuple[int, int]]  # (address of a storage, its bytes; negative when it is freed or dropped)

FREED = "free_requested"  # the tensor is gone, although another stream may still use its memory
PART = "part of the call: "  # distinguishes parts from the other records of the profiler


def observe(run: Callable[[], object], device: str, max_events: int, snapshot: Path | None = None) -> Observed:
    """Make one call of ``run`` and return its allocations.

    On a GPU, write the allocator's history to ``snapshot``. Raises CannotMeasure if the call has more than
    ``max_events`` allocations and frees.
    """
    return _observe_gpu(run, max_events, snapshot) if device == "cuda" else _observe_cpu(run)


def _observe_gpu(run: Callable[[], object], max_events: int, snapshot: Path | None) -> Observed:
    marks: list[Mark] = []

    def mark(name: str) -> None:
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        marks.append(Mark(name, held - begin_bytes, peak - begin_bytes, _allocations() - begin))

    @contextmanager
    def part(name: str) -> Iterator[None]:
        mark(name)
        try:
            yield
        finally:
            mark("")

    torch.cuda.synchronize()
    record = torch.cuda.memory._record_memory_history
    record(enabled=None)  # clears the history
    record(enabled="all", context="all", stacks="python", max_entries=max_events)
    try:
        begin_bytes, begin = torch.cuda.memory_allocated(), _allocations()
        torch.cuda.reset_peak_memory_stats()
        with watched(part):
            result = run()
            del result
        torch.cuda.synchronize()
        seen = torch.cuda.memory._snapshot()
    finally:
        record(enabled=None)
    events = seen["device_traces"][torch.cuda.current_device()]
    if len(events) >= max_events:
        raise CannotMeasure(f"a call has more than {max_events} allocations and frees; raise measure.memory.max_events")
    if snapshot is not None:
        with open(snapshot, "wb") as file:
            pickle.dump(seen, file)
    return read_history([entry for entry in events if entry["action"] in ("alloc", FREED)], marks)


def read_history(entries: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> Observed:
    """Return the allocations of one call from ``entries`` of the allocator's history."""
    changes: Changes = []
    sources: dict[int, Source] = {}
    for order, entry in enumerate(entries):
        made = entry["action"] == "alloc"
        changes.append((entry["addr"], entry["size"] if made else -entry["size"]))
        if made:
            sources[order] = tuple(map(_gpu_frame, entry.get("frames", ()))), ""
    return Observed(changes, sources, marks)


def _gpu_frame(frame: Mapping[str, Any]) -> str:
    """Return a frame as the profiler writes it: the path begins below the longest entry of ``sys.path`` above it."""
    path = frame["filename"]
    places = [place.rstrip("/") + "/" for place in sys.path if place]
    short = path.removeprefix(max((place for place in places if path.startswith(place)), key=len, default=""))
    return f"{short}:{frame['line']} {frame['name']}"


def _allocations() -> int:
    """Return the number of allocations that the allocator has made in this process."""
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def _observe_cpu(run: Callable[[], object]) -> Observed:
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as seen,
        watched(lambda name: record_function(PART + name)),
    ):
        result = run()
        del result
    assert seen.profiler is not None
    # Time; "memory", the name of a part, or "" at its end; event.
    moments: list[tuple[int, str, Any]] = [
        (event.start_time_ns, "memory", event) for event in cpu_allocations(seen.profiler)
    ]
    for event in all_events(seen.profiler):
        if event.tag == _EventType.TorchOp and event.name.startswith(PART):
            moments.append((event.start_time_ns, event.name.removeprefix(PART), event))
            moments.append((event.end_time_ns, "", event))
    marks: list[Mark] = []
    changes: Changes = []
    sources: dict[int, Source] = {}
    held = peak = 0
    for _, what, event in sorted(moments, key=lambda moment: moment[0]):
        if what != "memory":
            marks.append(Mark(what, held, peak, len(sources)))
            peak = held
            continue
        change = event.extra_fields
        if change.alloc_size > 0:
            sources[len(changes)] = _cpu_source(event)
        changes.append((change.ptr, change.alloc_size))
        held += change.alloc_size
        peak = max(peak, held)
    return Observed(changes, sources, marks)


def _cpu_source(event: Any) -> Source:
    """Return the Python frames around ``event``, innermost first, and the outermost operator of torch inside them.

    If Python calls torch by a function, the innermost line is that of the call. If it calls torch by an operator such
    as ``@``, that line is the beginning of the Python function, since the profiler records no other.
    """
    frames: list[str] = []
    operator = ""
    parent = event.parent
    while parent is not None:
        if parent.tag in (_EventType.PyCall, _EventType.PyCCall):
            if not frames and parent.tag == _EventType.PyCall:
                frames.append(_cpu_frame(parent.extra_fields.callsite))
            frames.append(_cpu_frame(parent.extra_fields.caller))
        elif parent.tag == _EventType.TorchOp and not frames and parent.name.startswith("aten::"):
            operator = parent.name
        parent = parent.parent
    return tuple(frames), operator


def _cpu_frame(state: Any) -> str:
    return f"{state.file_name}:{state.line_number} {state.function_name}"


class _Saved:
    """A tensor saved for backward. Autograd drops it when the backward no longer needs it."""

    def __init__(self, tensor: Tensor, changes: Changes) -> None:
        storage = tensor.untyped_storage()
        self.tensor = tensor
        self._changes, self._address, self._bytes = changes, storage.data_ptr(), storage.nbytes()
        changes.append((self._address, self._bytes))

    def __del__(self) -> None:
        self._changes.append((self._address, -self._bytes))


@contextmanager
def saving() -> Iterator[Changes]:
    """Collect each tensor that autograd saves or drops inside this context."""
    changes: Changes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Saved(tensor, changes), lambda saved: saved.tensor):
        yield changes
