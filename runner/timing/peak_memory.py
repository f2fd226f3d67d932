"""Peak memory of one call above what is held before it: inputs, weights, outputs of earlier calls."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Bytes, as the allocator counts them. The call's own output is part of the peak."""
    return _on_gpu(call) if device == "cuda" else _on_cpu(call)


def _on_gpu(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(call: Callable[[], object]) -> int:
    """The CPU allocator keeps no count, but reports each allocation to the profiler.

    ``torch.profiler`` would do as well, but its first use imports a second's worth of torch._dynamo.
    """
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        result = call()
    del result
    held = peak = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
