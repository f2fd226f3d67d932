"""A call's outputs, whether they are computed anew each time, and its peak memory; the base class of instruments."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, equal
from torch._C._profiler import _EventType

from runner.timing import Call


class Instrument:
    """Base class of all instruments: they time single calls of ``run``, each after an untimed call of ``before``."""

    name: str  # as in the column ``instrument``
    kernels: int | None = None  # kernels, copies and fills of a call in its CUDA graph; None: no graph, or unknown
    round_size = 1  # samples of a whole round, for instruments that take several at a time
    early_us: Sequence[float] = ()  # samples that were taken before the warm-up, of a call so slow that each one counts

    def __init__(self, run: Callable[[], object], before: Callable[[], object]) -> None:
        self.clocks_mhz: list[float] = []  # clock of a multiprocessor in each sample; empty if not measured
        self._run, self._before = run, before

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times of one call or a few more, in us, in the order they were taken."""
        raise NotImplementedError

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """Yield the outputs of one more call, made in the same way as the timed ones."""
        self._before()
        result = tensors(self._run())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the call may leave work on another stream
        yield result


def tensors(result: object) -> list[Tensor]:
    """Return the tensors in ``result``, which may be one, detached from the autograd graph."""
    items = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else [result]
    return [item.detach() for item in items if isinstance(item, Tensor)]


def spoil(call: Call) -> None:
    """Call once and overwrite the outputs with NaN or other integers, so that returning them again is wrong."""
    call.restore()
    inputs = {tensor.untyped_storage().data_ptr() for tensor in call.inputs}
    for output in tensors(call.run()):
        if output.untyped_storage().data_ptr() not in inputs:
            with contextlib.suppress(RuntimeError):  # torch does not write to expanded or inference tensors
                output.fill_(math.nan) if output.is_floating_point() else output.bitwise_not_()


def caches_results(call: Call) -> bool:
    """Return whether ``call`` gives the same bits for other inputs. The inputs are restored afterwards.

    This finds an implementation that returns copies of a kept result. Nothing is found if each output has one value
    throughout, such as a softmax of one column, or if memory is too short for other inputs and outputs.
    """
    try:
        call.restore()
        before = [output.clone() for output in tensors(call.run())]
        call.restore()
        inputs = [tensor.data for tensor in call.inputs if tensor.is_floating_point()]
        originals = [tensor.clone() for tensor in inputs]
        try:
            for tensor in inputs:
                _change(tensor)
            same = [equal(now, then) for now, then in zip(tensors(call.run()), before, strict=True)]
        finally:
            for tensor, original in zip(inputs, originals, strict=True):
                tensor.copy_(original)
            call.restore()
        found = bool(inputs) and all(same) and any(map(_varies, before))
    except torch.OutOfMemoryError:
        return False
    return found


def _change(tensor: Tensor) -> None:
    """Replace the values by other plausible ones. Expanded tensors stay, since torch does not write to them."""
    with contextlib.suppress(RuntimeError):
        if tensor.dtype.itemsize > 1:
            tensor.mul_(-0.5).add_(0.25)
        else:  # float8 has no arithmetic
            tensor.copy_(0.25 - tensor.float() / 2)


def _varies(output: Tensor) -> bool:
    return output.numel() > 0 and not bool((output == output.reshape(-1)[0]).all())


def alias(tensor: Tensor) -> Tensor:
    """Return a tensor over the same memory that does not keep it allocated, as torch's CUDA graph trees do."""
    storage = tensor.untyped_storage()
    unowned = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(unowned, int(tensor.storage_offset()), tensor.shape, tensor.stride())


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Return the peak of the memory that ``call`` allocates, in bytes, its outputs included.

    On a CPU, what the call frees of earlier calls, such as their gradients, does not lower it.
    """
    if device == "cpu":  # the allocator keeps no count; torch.profiler would import torch._dynamo, in a second
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


def cpu_allocations(profile: Any) -> Iterator[Any]:
    """Yield the events in which a call under torch's profiler allocates memory on the CPU, or frees it, by time.

    Memory from before the call is left out when it is freed: the profiler tells of some of it only, namely what was
    allocated under it.
    """
    held = set()
    found = [event for event in all_events(profile) if event.tag == _EventType.Allocation]
    for event in sorted(found, key=lambda event: event.start_time_ns):
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
