"""Record a call's allocations, and the tensors that autograd saves for backward.

On a GPU, torch's allocator can keep a history. On a CPU, it reports each allocation to the profiler.
"""

import gc
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

from ...kernels.spans import watched
from ...timing.peak_memory import all_events, cpu_allocations
from .. import CannotMeasure
from .allocations import CallSite, Mark, Observed

Changes = list[tuple[int, int]]  # (address of a storage, its bytes; negative when it is freed or dropped)

FREED = "free_requested"  # the tensor was freed, although another stream may still use its memory
PART = "part of the call: "  # prefix of the profiler's records of parts


def observe(run: Callable[[], object], device: str, max_events: int, snapshot: Path | None = None) -> Observed:
    """Call ``run`` once and return its allocations.

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

    gc.collect()  # what Python frees during the call would lower its peak
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
        history = torch.cuda.memory._snapshot()
    finally:
        record(enabled=None)
    events = history["device_traces"][torch.cuda.current_device()]
    if len(events) >= max_events:
        raise CannotMeasure(f"a call has more than {max_events} allocations and frees; raise measure.memory.max_events")
    if snapshot is not None:
        with open(snapshot, "wb") as file:
            pickle.dump(history, file)
    return read_history([entry for entry in events if entry["action"] in ("alloc", FREED)], marks)


def read_history(entries: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> Observed:
    """Return the allocations of one call from ``entries`` of the allocator's history."""
    made = {order: entry for order, entry in enumerate(entries) if entry["action"] == "alloc"}
    changes = [(entry["addr"], entry["size"] * (1 if order in made else -1)) for order, entry in enumerate(entries)]
    sources = {order: (tuple(map(_gpu_frame, entry.get("frames", ()))), "") for order, entry in made.items()}
    return Observed(changes, sources, marks)


def _gpu_frame(frame: Mapping[str, Any]) -> str:
    """Return a frame in the profiler's form: its path is relative to the longest entry of ``sys.path`` above it."""
    path = frame["filename"]
    roots = [root.rstrip("/") + "/" for root in sys.path if root]
    short = path.removeprefix(max((root for root in roots if path.startswith(root)), key=len, default=""))
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
    # Time; name of a part that begins, or "" at its end; event that allocates or frees.
    moments: list[tuple[int, str, Any]] = [(event.start_time_ns, "", event) for event in cpu_allocations(seen.profiler)]
    for event in all_events(seen.profiler):
        if event.tag == _EventType.TorchOp and event.name.startswith(PART):
            moments.append((event.start_time_ns, event.name.removeprefix(PART), None))
            moments.append((event.end_time_ns, "", None))
    marks: list[Mark] = []
    changes: Changes = []
    sources: dict[int, CallSite] = {}
    held = peak = 0
    for _, name, event in sorted(moments, key=lambda moment: moment[0]):
        if event is None:
            marks.append(Mark(name, held, peak, len(sources)))
            peak = held
            continue
        change = event.extra_fields
        if change.alloc_size > 0:
            sources[len(changes)] = _cpu_source(event)
        changes.append((change.ptr, change.alloc_size))
        held += change.alloc_size
        peak = max(peak, held)
    return Observed(changes, sources, marks)


def _cpu_source(event: Any) -> CallSite:
    """Return the Python frames around ``event``, innermost first, and the outermost operator of torch inside them.

    If Python calls a function of torch, the innermost line is the line of the call. For an operator such as ``@``, it
    is the first line of the Python function, since the profiler does not record the line of the operator.
    """
    frames: list[str] = []
    operator = ""
    while (event := event.parent) is not None:
        if event.tag in (_EventType.PyCall, _EventType.PyCCall):
            if not frames and event.tag == _EventType.PyCall:
                frames.append(_cpu_frame(event.extra_fields.callsite))
            frames.append(_cpu_frame(event.extra_fields.caller))
        elif event.tag == _EventType.TorchOp and not frames and event.name.startswith("aten::"):
            operator = event.name
    return tuple(frames), operator


def _cpu_frame(state: Any) -> str:
    return f"{state.file_name}:{state.line_number} {state.function_name}"


class _Saved:
    """A tensor saved for backward. Autograd deletes it when the backward no longer needs it."""

    def __init__(self, tensor: Tensor, changes: Changes) -> None:
        storage = tensor.untyped_storage()
        self.tensor = tensor
        self._changes, self._address, self._bytes = changes, storage.data_ptr(), storage.nbytes()
        changes.append((self._address, self._bytes))

    def __del__(self) -> None:
        self._changes.append((self._address, -self._bytes))


@contextmanager
def saving() -> Iterator[Changes]:
    """Collect the tensors that autograd saves or deletes inside this context."""
    changes: Changes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Saved(tensor, changes), lambda saved: saved.tensor):
        yield changes
