"""Arguments of a call: their tensors, the changes that a call makes to them, and their device."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from . import nested
from .correctness import PLAIN, same_bits
from .outputs import tensors


class Inputs:
    """The tensors among arguments, and copies of the tensors that calls change."""

    def __init__(self, args: object) -> None:
        self.tensors = [tensor for _, tensor in nested.tensors(args)]
        self.changed: list[tuple[Tensor, Tensor]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    @property
    def movable(self) -> tuple[Tensor, ...]:
        """Tensors that may be moved in memory while they are timed: leaves whose memory no other tensor shares."""
        plain = [tensor for tensor in self.tensors if type(tensor) in PLAIN]
        storages = Counter(tensor.untyped_storage().data_ptr() for tensor in plain)
        return tuple(
            tensor
            for tensor in plain
            if not tensor.is_inference() and tensor.is_leaf and storages[tensor.untyped_storage().data_ptr()] == 1
        )

    def copy(self) -> None:
        """Copy the tensors, so that changes are noticed. Raises torch.OutOfMemoryError."""
        for tensor in self.tensors:
            if type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_quantized:
                self._before.append((tensor, tensor.detach().clone()))

    def note_changes(self) -> None:
        """Find the tensors that a call has changed, and free the copies of the others."""
        changed = {id(tensor) for tensor, _ in self.changed}
        self.changed += [(now, was) for now, was in self._before if id(now) not in changed and not same_bits(now, was)]
        self._before = []

    def restore(self) -> None:
        """Undo the changes, in place."""
        if self.changed:
            with torch.no_grad():
                now, was = zip(*self.changed, strict=True)
                torch._foreach_copy_(now, was)


def device_of(functions: Sequence[Callable[..., Any]], args: Sequence[Any]) -> torch.device:
    """Return the device of a GPU tensor that the functions take, refer to or return; else the CPU."""
    inputs = Inputs(args)
    held = list(chain(inputs.tensors, *map(referenced_tensors, functions)))
    on_gpu = next((tensor.device for tensor in held if tensor.is_cuda), None)
    if on_gpu or not torch.cuda.is_available():
        return on_gpu or torch.device("cpu")
    inputs.copy()
    try:
        outputs = tensors(functions[0](*args))
    finally:
        inputs.note_changes()
        inputs.restore()
    unknown = not held and not outputs and torch.cuda.is_initialized()
    current = torch.device("cuda", torch.cuda.current_device()) if unknown else torch.device("cpu")
    return next((tensor.device for tensor in outputs if tensor.is_cuda), current)


def referenced_tensors(function: Any) -> Iterator[Tensor]:
    """Yield the tensors of a function: in a partial, module, closure, default value or global that it refers to."""
    while isinstance(function, partial):
        yield from Inputs((function.args, function.keywords)).tensors
        function = function.func
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield from chain(owner.parameters(), owner.buffers())
    if inspect.isfunction(function := inspect.unwrap(getattr(function, "__func__", function))):
        with suppress(ValueError):  # of a variable that has no value yet
            names = inspect.getclosurevars(function)
            yield from Inputs((names.nonlocals, names.globals, function.__defaults__, function.__kwdefaults__)).tensors
