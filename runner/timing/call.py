"""What a timed call gives, whether that is new each time, and the memory it takes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.timing import Call


def tensors(result: object) -> list[Tensor]:
    """The tensors in ``result``, without the graph that autograd made of them."""
    return [item.detach() for item in result if isinstance(item, Tensor)] if isinstance(result, tuple | list) else []


def spoil(call: Call) -> None:
    """Make one call, and write over what it gives: of a call that merely keeps its results the next ones are wrong."""
    call.restore()
    inputs = {tensor.untyped_storage().data_ptr() for tensor in call.inputs}
    for output in tensors(call.run()):
        if output.is_floating_point() and output.untyped_storage().data_ptr() not in inputs:
            with contextlib.suppress(RuntimeError):  # expanded, or made in inference mode: torch writes to neither
                output.fill_(math.nan)


def remembers(call: Call) -> bool:
    """Whether it gives the same bits as before although its inputs are others by then, which are put back.

    Who hands out copies of a result that it has kept passes every look at the outputs of one set of inputs. Where each
    output is one number throughout (a softmax of one column, products of zeros), the inputs need not show in it. Where
    there is no memory for another set of inputs and outputs, nothing is found.
    """
    try:
        return _remembers(call)
    except torch.OutOfMemoryError:
        return False


def _remembers(call: Call) -> bool:
    call.restore()
    before = [output.clone() for output in tensors(call.run())]
    call.restore()
    inputs = [tensor.data for tensor in call.inputs if tensor.is_floating_point()]
    kept = [tensor.clone() for tensor in inputs]
    try:
        for tensor in inputs:
            _change(tensor)
        same = [torch.equal(now, then) for now, then in zip(tensors(call.run()), before, strict=True)]
    finally:
        for tensor, was in zip(inputs, kept, strict=True):
            tensor.copy_(was)
        call.restore()
    return bool(inputs) and all(same) and any(_varies(output) for output in before)


def _change(tensor: Tensor) -> None:
    """To other plausible numbers. What overlaps itself, expanded, stays: torch does not write to that."""
    with contextlib.suppress(RuntimeError):
        if tensor.dtype.itemsize > 1:
            tensor.mul_(-0.5).add_(0.25)
        else:  # float8 has no arithmetic
            tensor.copy_(0.25 - tensor.float() / 2)


def _varies(output: Tensor) -> bool:
    return output.numel() > 0 and not bool((output == output.reshape(-1)[0]).all())


@dataclass(frozen=True)
class Place:
    """Where a tensor lies that a CUDA graph writes: it may be looked at after each replay, and holds no memory."""

    data_ptr: int
    size_bytes: int  # of its storage
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        """The place of ``tensor``."""
        storage = tensor.untyped_storage()
        return cls(
            storage.data_ptr(),
            storage.nbytes(),
            int(tensor.storage_offset()),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
        )

    def tensor(self) -> Tensor:
        """What is there now. As torch's own CUDA graph trees do it."""
        storage = torch._C._construct_storage_from_data_pointer(self.data_ptr, self.device, self.size_bytes)
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)


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
