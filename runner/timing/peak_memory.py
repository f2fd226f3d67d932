"""Peak memory of a call."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch._C._profiler import _EventType


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Return the peak of the memory that ``call`` allocates in bytes, including its outputs.

    On a CPU, memory of earlier calls that the call frees, such as their gradients, does not count.
    """
    if device == "cpu":  # the allocator does not count; torch.profiler would import torch._dynamo, which takes a second
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            result = call()
        del result
        changes: list[int] = [event.extra_fields.alloc_size for event in cpu_allocations(profile)]
        return max(accumulate(changes, initial=0))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def peak_bytes_of_program(call: Callable[[], object], device: str) -> int | None:
    """Return ``peak_bytes`` in the process of a program, whose own record of the peak stays; None while it profiles.

    torch's older profiler counts, which starts neither Kineto nor CUPTI. Memory from before the call does not count.
    """
    from torch.autograd import profiler_legacy

    profiler: Any = torch._C._autograd
    if profiler._profiler_enabled():
        return None
    profiler._enable_profiler_legacy(profiler_legacy.profile(profile_memory=True).config())
    try:
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
        del result
    finally:
        events = [event for thread in profiler._disable_profiler_legacy() for event in thread]
    usage, start = f"{device}_memory_usage", events[0]
    held, total, peak = Counter[int](), 0, 0
    for event in sorted(events, key=start.cpu_elapsed_us):
        size = int(getattr(event, usage)()) if event.kind() == "memory_alloc" else 0
        if size < 0 and not held[-size]:
            continue
        held[abs(size)] += 1 if size > 0 else -1
        total += size
        peak = max(peak, total)
    return peak


def cpu_allocations(profile: Any) -> Iterator[Any]:
    """Yield the events in which a call under torch's profiler allocates or frees memory on the CPU, by time.

    Frees of memory from before the call are left out, since the profiler reports only memory allocated while it ran.
    """
    held = set()
    events = [event for event in all_events(profile) if event.tag == _EventType.Allocation]
    for event in sorted(events, key=lambda event: event.start_time_ns):
        change = event.extra_fields
        if change.device.type != "cpu":
            continue
        if change.alloc_size > 0:
            held.add(change.ptr)
        elif change.ptr in held:
            held.remove(change.ptr)
        else:
            continue
        yield event


def all_events(profile: Any) -> Iterator[Any]:
    """Yield all events of torch's ``profile``, parents before their children."""
    waiting = [*reversed(profile.kineto_results.experimental_event_tree())]
    while waiting:
        event = waiting.pop()
        yield event
        waiting += reversed(event.children)
