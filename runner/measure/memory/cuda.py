"""Allocations of a call on a GPU, by the history that torch's allocator keeps when it is asked to."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from runner.kernels.spans import watched
from runner.measure import CannotMeasure
from runner.measure.memory.allocations import Allocation, Mark, Observed, held_at_peak

FREED = "free_requested"  # the tensor is gone, though another stream may have to be done with its memory


class _Marks:
    """Where parts begin and end, by the allocator's own counts."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self._before_bytes, self._before = torch.cuda.memory_allocated(), _allocations()
        torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """For ``runner.kernels.spans.watched``."""
        self._mark(name)
        try:
            yield
        finally:
            self._mark("")

    def _mark(self, name: str) -> None:
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        before = self._before_bytes
        self.marks.append(Mark(name, held - before, peak - before, _allocations() - self._before))


def observe(run: Callable[[], object], max_events: int, snapshot: Path | None) -> Observed:
    """One call of ``run``; the history goes into ``snapshot``, if that is a path. Raises CannotMeasure."""
    torch.cuda.synchronize()
    with _history(max_events):
        marks = _Marks()
        with watched(marks.named):
            result = run()
            del result
        torch.cuda.synchronize()
        seen = torch.cuda.memory._snapshot()
    try:
        events = seen["device_traces"][torch.cuda.current_device()]
        entries = [entry for entry in events if entry["action"] in ("alloc", FREED)]
        observed = _read(entries, marks.marks)
    except (KeyError, IndexError, TypeError) as error:
        raise CannotMeasure(
            f"torch {torch.__version__} writes its memory history otherwise than expected ({error!r}); "
            "install torch 2.6 to 2.13"
        ) from error
    if len(events) >= max_events:
        raise CannotMeasure(f"a call has more than {max_events} allocations and frees; raise measure.memory.max_events")
    if marks.marks and marks.marks[-1].allocations > len(observed.allocations):
        raise CannotMeasure(
            "the allocator's history lacks allocations that it has counted; nothing can be said of parts"
        )
    if snapshot is not None:
        with open(snapshot, "wb") as file:
            pickle.dump(seen, file)
    return observed


@contextmanager
def _history(max_events: int) -> Iterator[None]:
    """Meanwhile the allocator writes down what it does, with the Python stack of each. What it knew before is lost."""
    try:
        record = torch.cuda.memory._record_memory_history
        record(enabled=None)  # which clears it
        record(enabled="all", context="all", stacks="python", max_entries=max_events)
    except (AttributeError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CannotMeasure(
            f"torch's allocator keeps no history here ({reason}); run without PYTORCH_CUDA_ALLOC_CONF=backend:..., "
            "on torch 2.6 to 2.13"
        ) from error
    try:
        yield
    finally:
        record(enabled=None)


def _read(entries: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> Observed:
    """``entries`` of the history, which are of one call."""
    changes = [(entry["addr"], entry["size"] * (1 if entry["action"] == "alloc" else -1)) for entry in entries]
    live = held_at_peak(changes)
    allocations = [
        Allocation(entry["size"], tuple(map(_frame, entry.get("frames", ()))), at_peak=order in live)
        for order, entry in enumerate(entries)
        if entry["action"] == "alloc"
    ]
    return Observed(allocations, marks, frozenset(address for address, size in changes if size > 0))


def _frame(frame: Mapping[str, Any]) -> str:
    return f"{_short(frame['filename'])}:{frame['line']} {frame['name']}"


def _short(path: str) -> str:
    """As it is imported: without the longest entry of ``sys.path`` before it."""
    places = [place.rstrip("/") + "/" for place in sys.path if place]
    return path.removeprefix(max((place for place in places if path.startswith(place)), key=len, default=""))


def _allocations() -> int:
    """How many the allocator has made since it began."""
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))
