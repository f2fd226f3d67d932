"""Arguments of a call: their tensors, the changes that a call makes to them, and their device."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from . import nested
from .correctness import PLAIN, same_bits
from .nested import returned_tensors


class Inputs:
    """The tensors among arguments, gradients included, and copies of the tensors that calls change or replace."""

    def __init__(self, args: object) -> None:
        self.tensors = [*nested.named_tensors(args).values()]
        self.changed: list[tuple[Tensor, Tensor]] = []
        self.replaces = False  # whether calls put other values into dicts, lists, modules or arrays without a tensor
        self.others: dict[int, Tensor] = {}  # values of integers for a first call, by their addresses
        self._args = args
        self._held: list[tuple[Any, Any]] = []  # dicts and lists, each with a copy
        self._arrays: list[tuple[Any, Any]] = []  # whose memory no tensor shares, each with a copy
        self._attributes: list[tuple[Any, str, Any]] = []  # of modules and of leaves of autograd
        self._before: list[tuple[Tensor, Tensor]] | None = None  # changes are not noticed

    @property
    def movable(self) -> tuple[Tensor, ...]:
        """Tensors that may be moved in memory while they are timed: leaves whose memory no other tensor shares."""
        plain = [tensor for tensor in self.tensors if is_watched(tensor)]
        storages = Counter(tensor.untyped_storage().data_ptr() for tensor in plain)
        return tuple(
            tensor
            for tensor in plain
            if not tensor.is_inference() and tensor.is_leaf and storages[tensor.untyped_storage().data_ptr()] == 1
        )

    @property
    def numbers(self) -> list[Tensor]:
        """Tensors that have other numbers in a first call. Those of modules, and expanded ones, keep theirs."""
        return [x for x in self._replaceable if has_numbers(x) or x.data_ptr() in self.others]

    @property
    def integers(self) -> list[Tensor]:
        """Integers and booleans that may have other values in a first call, if there are ``others``."""
        return [x for x in self._replaceable if not (x.is_floating_point() or x.is_complex())]

    @property
    def _replaceable(self) -> list[Tensor]:
        weights = set(map(id, nested.tensors(nested.modules(self._args))))
        found = [x for x in self.tensors if is_watched(x) and 0 not in x.stride() and id(x) not in weights]
        return found if self._before is not None else []

    def copy(self, without: Collection[int] = ()) -> None:
        """Copy the tensors, but for those of some ids, so that changes are noticed. Raises torch.OutOfMemoryError."""
        watched = [tensor for tensor in self.tensors if is_watched(tensor) and id(tensor) not in without]
        held = nested.holders(self._args)  # the ``copy`` and ``update`` of their classes may refuse
        self._held = [(holder, dict(holder) if isinstance(holder, dict) else list(holder)) for holder in held]
        self._arrays = [(array, array.copy()) for array in nested.unshared(self._args)]
        leaves = [tensor for tensor in self.tensors if tensor.is_leaf and not tensor._is_view()]  # views stay attached
        names: list[tuple[Any, str]] = [(leaf, name) for leaf in leaves for name in ("requires_grad", "grad")]
        names += [(module, "training") for module in nested.modules(self._args)]
        self._attributes = [(owner, name, getattr(owner, name)) for owner, name in names]
        self._before = [(tensor, tensor.detach().clone()) for tensor in watched]

    @property
    def now(self) -> list[Tensor] | None:
        """The tensors that calls change, and those that they put into the arguments; None if that is not noticed."""
        known, args = set(map(id, self.tensors)), nested.named_tensors(self._args) if self.replaces else {}
        new = [tensor for tensor in args.values() if id(tensor) not in known and is_watched(tensor)]
        return [now for now, _ in self.changed] + new if self._before is not None else None

    def note_changes(self) -> None:
        """Find the tensors that a call has changed or replaced, and free the copies of the others."""
        self.replaces |= any(_differ(holder, was) for holder, was in self._held)
        self.replaces |= any(getattr(owner, name) is not was for owner, name, was in self._attributes)
        self.replaces |= any(array.tobytes() != was.tobytes() for array, was in self._arrays)
        changed = {id(tensor) for tensor, _ in self.changed}
        new = [pair for pair in self._before or () if id(pair[0]) not in changed]
        self.changed += [(now, was) for now, was in new if not same_bits(now, was)]
        self._before = self._before and []

    def restore(self) -> None:
        """Undo the changes, in place."""
        for holder, was in self._held if self.replaces else ():
            holder.clear()
            for key, value in was.items() if isinstance(was, dict) else ():
                holder[key] = value
            if isinstance(was, list):
                holder.extend(was)
        for array, was in self._arrays if self.replaces else ():
            array[...] = was
        for owner, name, was in self._attributes if self.replaces else ():
            if name == "requires_grad":
                owner.detach_()  # it has a history if a call wrote into it what requires a gradient
            setattr(owner, name, was)
        if self.changed:
            now, was = zip(*self.changed, strict=True)
            torch._foreach_copy_([tensor.data for tensor in now], was)  # no version of a tensor tells of it

    def undo(self) -> None:
        """Undo the changes since ``copy``, in place, and forget them."""
        before = self._before
        self.note_changes()
        self.restore()
        self.changed, self.replaces, self._before = [], False, before


def _differ(holder: Any, was: Any) -> bool:
    """Return whether a dict, list or deque holds other objects than its copy."""
    now, then = ([*each, *each.values()] if isinstance(each, dict) else each for each in (holder, was))
    return [*map(id, now)] != [*map(id, then)]


def is_watched(tensor: Tensor) -> bool:
    """Return whether changes of ``tensor`` are noticed."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_quantized


def has_numbers(tensor: Tensor) -> bool:
    """Return whether ``tensor`` has floating-point or complex numbers, which a test may change."""
    return tensor.numel() > 0 and (tensor.is_floating_point() or (tensor.is_complex() and not tensor.is_conj()))


def device_of(functions: Sequence[Callable[..., Any]], args: Sequence[Any]) -> torch.device:
    """Return the device of a GPU tensor that the functions take, refer to or return; else the CPU."""
    inputs = Inputs(args)
    held = list(chain(inputs.tensors, *map(referenced_tensors, functions)))
    on_gpu = next((tensor.device for tensor in held if tensor.is_cuda), None)
    if on_gpu or not torch.cuda.is_available():
        return on_gpu or torch.device("cpu")
    inputs.copy()
    outputs: list[Tensor] = []
    for function in functions:
        with suppress(Exception):  # its first call raises it again
            outputs = returned_tensors(function(*args))
            break
    inputs.undo()
    unknown = not held and not outputs and torch.cuda.is_initialized()
    current = torch.device("cuda", torch.cuda.current_device()) if unknown else torch.device("cpu")
    return next((tensor.device for tensor in outputs if tensor.is_cuda), current)


def referenced_tensors(function: Any) -> Iterator[Tensor]:
    """Yield the tensors of a function: in a partial, module, closure, default value or global that it refers to."""
    while isinstance(function, partial):
        yield from nested.tensors((function.args, function.keywords))
        function = function.func
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield from chain(owner.parameters(), owner.buffers())
    if inspect.isfunction(function := inspect.unwrap(getattr(function, "__func__", function))):
        held = [function.__globals__.get(name) for name in function.__code__.co_names]
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # the variable has no value yet
                held.append(cell.cell_contents)
        yield from nested.tensors((held, function.__defaults__, function.__kwdefaults__))
