"""The arguments of a function that a caller times: their tensors, what a call changes, their device, and backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, equal

from runner.timing.call import tensors

if TYPE_CHECKING:
    from runner.timing.in_process import Function, Options


class Inputs:
    """The tensors among arguments, and copies of those that calls change."""

    def __init__(self, args: object) -> None:
        self.tensors = list({id(one): one for one in leaves(args) if isinstance(one, Tensor)}.values())
        self.changed: list[tuple[Tensor, Tensor]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        with suppress(torch.OutOfMemoryError):  # then changes are not noticed
            for one in self.tensors:
                if type(one) in PLAIN and one.layout is torch.strided and not one.is_quantized:
                    self._before.append((one, one.detach().clone()))

    @property
    def movable(self) -> tuple[Tensor, ...]:
        """Those that may be moved in memory while they are timed: no other tensor shares their memory."""
        storages = [one.untyped_storage().data_ptr() for one in self.tensors if type(one) in PLAIN]
        return tuple(
            one
            for one in self.tensors
            if type(one) in PLAIN
            and not one.is_inference()
            and one.is_leaf
            and storages.count(one.untyped_storage().data_ptr()) == 1
        )

    def note_changes(self) -> None:
        """Find the tensors that a call has changed."""
        known = {id(one) for one, _ in self.changed}
        self.changed += [(now, was) for now, was in self._before if id(now) not in known and not same_bits(now, was)]

    def forget_unchanged(self) -> None:
        """Free the copies of tensors that no function has changed."""
        self._before = []

    def restore(self) -> None:
        """Undo the changes, in place."""
        if self.changed:
            with torch.no_grad():
                for now, was in self.changed:
                    now.copy_(was)


PLAIN = (Tensor, torch.nn.Parameter)  # other classes may have no memory of their own


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and type have the same bits; NaN equals NaN."""
    return equal(*(each.detach().reshape(-1).view(torch.uint8) for each in (one, other)))


def leaves(nested: object) -> Iterator[object]:
    """Yield what lists, tuples and mappings hold."""
    if isinstance(nested, Mapping):
        nested = list(nested.values())
    if isinstance(nested, list | tuple):
        yield from chain.from_iterable(map(leaves, nested))
    else:
        yield nested


def mapped(change: Callable[[Tensor], Tensor], nested: Any) -> Any:
    """Return lists, tuples and mappings with each tensor changed; a tuple with names stays as it is."""
    if isinstance(nested, Tensor):
        return change(nested)
    if type(nested) in (list, tuple):
        return type(nested)(mapped(change, one) for one in nested)
    if type(nested) is dict:
        return {name: mapped(change, one) for name, one in nested.items()}
    return nested


def device_of(functions: Sequence[Function], args: Sequence[Any], inputs: Inputs) -> torch.device:
    """Return the device of a GPU tensor that the functions take, name or return; else the CPU."""
    found = list(chain(inputs.tensors, *map(referenced_tensors, functions)))
    on_gpu = next((one.device for one in found if one.is_cuda), None)
    if on_gpu or not torch.cuda.is_available():
        return on_gpu or torch.device("cpu")
    try:
        outputs = tensors(functions[0](*args))
    finally:
        inputs.note_changes()
        inputs.restore()
    unknown = not found and not outputs and torch.cuda.is_initialized()
    current = torch.device("cuda", torch.cuda.current_device()) if unknown else torch.device("cpu")
    return next((one.device for one in outputs if one.is_cuda), current)


def referenced_tensors(function: Any) -> Iterator[Tensor]:
    """Yield tensors that a function holds: of a partial, a module, a closure, defaults, and globals that it names."""
    while isinstance(function, partial):
        yield from _tensors_of((function.args, function.keywords))
        function = function.func
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield from chain(owner.parameters(), owner.buffers())
    if inspect.isfunction(function := inspect.unwrap(getattr(function, "__func__", function))):
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        names = [function.__globals__.get(name) for name in function.__code__.co_names]
        yield from _tensors_of((cells, names, function.__defaults__, function.__kwdefaults__))


def _tensors_of(nested: object) -> Iterator[Tensor]:
    for one in leaves(nested):
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, torch.nn.Module):
            yield from one.parameters()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def bound(function: Function, args: Sequence[Any], options: Options) -> Callable[[], Any]:
    """Return the call of ``function`` with ``args``, or that of its backward too."""
    if options.grad:
        return Backward(function, args)
    return partial(function, *args) if args else function


class Backward:
    """Forward and backward of a function. Returns its outputs and the gradients of its arguments.

    Gradients of other tensors, such as a module's parameters, are computed too. No ``.grad`` is changed.

    Raises:
        ValueError: no output depends on a tensor that requires a gradient.

    """

    def __init__(self, function: Function, args: Sequence[Any]) -> None:
        given = [one for one in leaves(args) if isinstance(one, Tensor)]
        if not any(one.requires_grad for one in given):

            def leaf(tensor: Tensor) -> Tensor:
                return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor

            args = mapped(leaf, tuple(args))
            given = [one for one in leaves(args) if isinstance(one, Tensor)]
        self._function, self._args = function, args
        self._wanted = [one for one in given if one.requires_grad]
        self._others: list[Tensor] | None = None  # found in the first call
        self._upstream: list[Tensor] = []

    def __call__(self) -> tuple[Tensor, ...]:
        """Return the outputs and the gradients."""
        with torch.enable_grad():
            result = self._function(*self._args)
            outputs = [one for one in leaves(result) if isinstance(one, Tensor) and one.requires_grad]
            if self._others is None:
                if not outputs:
                    raise ValueError("grad=True: no output depends on a tensor that requires a gradient")
                mine = {id(one) for one in self._wanted}
                self._others = [one for one in _leaves_of(outputs) if id(one) not in mine]
                self._upstream = [_upstream(one) for one in outputs]
            wanted = [*self._wanted, *self._others]
            gradients = torch.autograd.grad(outputs, wanted, self._upstream, allow_unused=True)
        own = gradients[: len(self._wanted)]
        return (*(one.detach() for one in outputs), *(one for one in own if one is not None))


def _leaves_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves of the autograd graph of ``outputs``."""
    found, seen, waiting = [], set(), [one.grad_fn for one in outputs]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _upstream(output: Tensor) -> Tensor:
    """Return a gradient of ``output``: sixteenths between -1 and 1, which every type holds exactly."""
    generator = torch.Generator(output.device).manual_seed(0)
    drawn = torch.randint(-16, 17, output.shape, generator=generator, device=output.device)
    return drawn.to(output.dtype) / 16
