"""Nested values: what tuples, lists, mappings, modules and objects hold, each leaf with its path."""

import copy
import dataclasses
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..kernels.unsupported import Unsupported

DEEPEST, MOST_LEAVES = 50, 10_000  # limits of the walk of an object of a caller's class
# Classes of other packages that are walked too: they hold what a training step changes.
STATEFUL = (SimpleNamespace, Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
Path = str  # how an expression reaches a leaf from the whole: ``["past"][0].keys``; "" is the whole itself


def leaves(value: object) -> Iterator[tuple[Path, object]]:
    """Yield each leaf of ``value`` with its path, in order: tensors, numbers, strings, None and unknown objects.

    Mappings, lists, tuples, nested tensors, dataclasses, optimizers and objects of a caller's classes, such as a cache
    of keys and values, are walked, unless an object holds itself or very many others. A module yields its parameters
    and buffers by their names. An array of numpy becomes a tensor over its memory, and one of its numbers a number.
    """
    yield from ((path, of_array(leaf) if is_array(leaf) else leaf) for path, leaf in plain_leaves(value))


def plain_leaves(value: object, path: Path = "") -> Iterator[tuple[Path, object]]:
    """Yield ``leaves`` with arrays as they are."""
    children = _children(value)
    for key, child in children or ():
        yield from plain_leaves(child, f"{path}{key}")
    if children is None:
        yield path, value


def is_array(leaf: object) -> bool:
    """Return whether ``leaf`` is an array or a number of numpy, or of a package that converts to it on the CPU."""
    return hasattr(leaf, "__array__") and hasattr(leaf, "dtype") and not isinstance(leaf, Tensor | type)


def of_array(array: Any) -> object:
    """Return a tensor over the memory of ``array``; a copy of one that torch cannot share; text and objects as is."""
    import numpy as np

    if isinstance(array, np.generic):
        return array.item()
    try:
        found = np.asarray(array)
        shared = found.flags.writeable and all(stride >= 0 for stride in found.strides)
        return torch.from_numpy(found if shared else found.copy())
    except (TypeError, ValueError):
        return array


def unshared(value: object) -> list[Any]:
    """Return the arrays of numpy within ``value`` that can be written, and whose memory no tensor of torch shares."""
    arrays: list[Any] = [leaf for _, leaf in plain_leaves(value) if is_array(leaf) and hasattr(leaf, "ctypes")]
    return [x for x in arrays if x.flags.writeable and getattr(of_array(x), "data_ptr", int)() != x.ctypes.data]


def parts(value: object) -> Iterator[tuple[Path, object]]:
    """Yield ``value`` and everything within it, modules and mappings too, each with its path."""
    yield "", value
    if not isinstance(value, torch.nn.Module):
        for key, child in _children(value) or ():
            yield from ((f"{key}{path}", part) for path, part in parts(child))


def modules(value: object) -> list[torch.nn.Module]:
    """Return the modules within ``value``, and those within them."""
    found = [part for _, part in parts(value) if isinstance(part, torch.nn.Module)]
    return [module for part in found for module in part.modules()]


def data_parallel(value: object) -> list[DistributedDataParallel]:
    """Return the modules within ``value`` that reduce gradients over ranks."""
    return [module for module in modules(value) if isinstance(module, DistributedDataParallel)]


def reconnect(module: torch.nn.Module) -> None:
    """Let modules within ``module`` reduce gradients again: their hooks are lost if the type of parameters changes."""
    for part in data_parallel(module):
        part.__setstate__(part.__getstate__())


def holders(value: object) -> list[Any]:
    """Return the mappings and lists in which ``value``, or a module within it, holds something by reference."""
    found: list[Any] = []
    for module in modules(value):
        # Those of TorchScript are no dicts.
        found += [held for held in (module._parameters, module._buffers) if isinstance(held, dict)]
    for _, part in parts(value):
        if isinstance(part, dict | list | deque):
            found.append(part)
        elif hasattr(part, "__dict__") and not isinstance(part, torch.nn.Module) and _children(part) is not None:
            found.append(vars(part))
    return found


def named_tensors(value: object) -> dict[Path, Tensor]:
    """Return the tensors among ``leaves`` and their gradients by their paths, each once, under its first path."""
    found = _tensor_leaves(value)
    found += [(f"{path}.grad", grad) for path, x in found if (grad := gradient(x)) is not None]
    paths: dict[int, Path] = {}
    return {path: x for path, x in found if paths.setdefault(id(x), path) == path}


def gradient(tensor: Tensor) -> Tensor | None:
    """Return the ``.grad`` of a leaf of autograd; other tensors warn of theirs."""
    return tensor.grad if tensor.is_leaf else None


def tensors(value: object) -> list[Tensor]:
    """Return the tensors among ``leaves``, in order, each tensor once."""
    return list({id(tensor): tensor for _, tensor in _tensor_leaves(value)}.values())


def returned_tensors(result: object) -> list[Tensor]:
    """Return the tensors in ``result`` of a call, in order, detached. One that is there twice is returned twice."""
    return [tensor.detach() for _, tensor in _tensor_leaves(result)]


def returned_paths(result: object) -> list[Path]:
    """Return the path of each of ``returned_tensors(result)``."""
    return [path for path, _ in _tensor_leaves(result)]


def returned(result: object, changed: Sequence[Tensor] | None) -> Any:
    """Return ``result`` of a call; if it holds no tensor, the arguments that the call ``changed``, if any."""
    return result if tensors(result) or not changed else changed


def _tensor_leaves(value: object) -> list[tuple[Path, Tensor]]:
    return [(path, leaf) for path, leaf in leaves(value) if isinstance(leaf, Tensor)]


def mapped(
    change: Callable[[Tensor], Tensor], value: Any, copied: Callable[[torch.nn.Module], Any] = lambda module: module
) -> Any:
    """Return ``value`` with each tensor replaced by ``change(tensor)``, and so is its gradient.

    What occurs twice is changed once. Modules are not copied and stay as they are, unless ``copied`` returns another
    one, whose parameters then take the place of theirs, as in an optimizer. Nothing in ``value`` itself is changed.
    """
    copies = _Copies(change, copied)
    for module in [part for _, part in parts(value) if isinstance(part, torch.nn.Module)]:
        made = copies.once(module)
        for part, same in zip([*module.modules(), *tensors(module)], [*made.modules(), *tensors(made)], strict=True):
            copies.add(part, same)
    return copies.once(value)


class _Copies:
    """The copies of ``mapped``, each made once. No cycle holds them, so they are freed without garbage collection."""

    def __init__(self, change: Callable[[Tensor], Tensor], copied: Callable[[torch.nn.Module], Any]) -> None:
        self._replace = partial(_changed, change, copied)
        self._known: dict[int, tuple[Any, Any]] = {}  # by the id of what is kept alive beside it

    def once(self, part: Any) -> Any:
        if id(part) not in self._known:
            self.add(part, _mapped(self._replace, part, self.once))
        return self._known[id(part)][1]

    def add(self, part: Any, made: Any) -> None:
        if id(part) in self._known:
            return
        self._known[id(part)] = part, made
        if isinstance(part, Tensor) and made is not part and (grad := gradient(part)) is not None:
            made.grad = self.once(grad)


def cloned(value: Any) -> Any:
    """Return ``value`` with a copy of each tensor and each module."""
    return mapped(lambda tensor: tensor.detach().clone(), value, copied)


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of ``module``. Raises TypeError, which says what to do, if its class refuses."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        advice = "let the functions refer to it, as in lambda x: module(x), and check by another module of its weights"
        raise TypeError(f"{type(module).__name__} cannot be copied: {advice} ({error})") from error


def refilled(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Return ``value`` with ``tensors`` in place of its own, in order. Raises ValueError if it has fewer or more."""
    rest, count = [*reversed(tensors)], len(_tensor_leaves(value))
    if len(rest) != count:
        raise ValueError(f"{len(rest)} tensors where there were {count}")
    return _mapped(partial(_changed, lambda _: rest.pop(), lambda module: module), value)


def _changed(change: Callable[[Tensor], Tensor], modules: Callable[[torch.nn.Module], Any], leaf: Any) -> Any:
    if isinstance(leaf, torch.nn.Module):
        return modules(leaf)
    if isinstance(leaf, Tensor):
        return change(leaf)
    tensor = of_array(leaf)
    return change(tensor).detach().cpu().numpy() if isinstance(tensor, Tensor) else copy.copy(leaf)


def _mapped(replace: Callable[[Any], Any], value: Any, walk: Callable[[Any], Any] | None = None) -> Any:
    walk = walk or partial(_mapped, replace)
    if isinstance(value, NestedTensor):
        values, offsets, lengths = map(walk, (value._values, value._offsets, value._lengths))
        return torch.nested.nested_tensor_from_jagged(values, offsets, lengths, value._ragged_idx)
    if isinstance(value, Tensor | torch.nn.Module) or (is_array(value) and hasattr(value, "ctypes")):
        return replace(value)  # ctypes: of numpy itself
    if _children(value) is None:
        return value
    if isinstance(value, Mapping):
        changed = {walk(key) if isinstance(key, Tensor) else key: walk(child) for key, child in value.items()}
        if isinstance(value, defaultdict):
            return defaultdict(value.default_factory, changed)
        return changed if type(value) is dict else _of_type(value, changed)
    if isinstance(value, list | tuple | deque):
        items = [walk(child) for child in value]
        if isinstance(value, deque):
            return deque(items, value.maxlen)
        if hasattr(value, "_make"):
            return value._make(items)
        return items if type(value) is list else _of_type(value, items)
    try:
        made = copy.copy(value)
    except Exception:  # its class refuses copies
        made = object.__new__(type(value))
    for name, child in _attributes(value).items():
        object.__setattr__(made, name, walk(child))  # also of a frozen dataclass
    return made


def _of_type(value: Any, changed: Any) -> Any:
    """Return ``changed`` as an object of the class of ``value``; a class that cannot be made so stays a plain one."""
    try:
        return type(value)(changed)
    except Exception:
        return changed


def _children(value: object) -> Iterator[tuple[str, object]] | None:
    """Return the parts of ``value``, each with the expression that reaches it; None if it is a leaf."""
    if isinstance(value, torch.nn.Module):
        named = [*value.named_parameters(remove_duplicate=False), *value.named_buffers(remove_duplicate=False)]
        return ((f".{name}", tensor) for name, tensor in named)
    if isinstance(value, NestedTensor):
        values = value.values() if value.requires_grad else value._values  # the latter is the same object each time
        return iter([(".values()", values), (".offsets()", value._offsets), (".lengths()", value._lengths)])
    if isinstance(value, Tensor) and value.is_nested:
        raise Unsupported("a nested tensor of another layout cannot be copied and compared; give layout=torch.jagged")
    if isinstance(value, Mapping):  # Hugging Face's outputs are mappings and dataclasses
        keys = (str(place) if isinstance(key, Tensor) else repr(key) for place, key in enumerate(value))
        return ((f"[{key}]".replace("'", '"'), child) for key, child in zip(keys, value.values(), strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f".{name}", child) for name, child in zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple | deque):
        return ((f"[{place}]", child) for place, child in enumerate(value))
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if is_dataclass or (_is_object(value) and _leaves_below(value, {}) <= MOST_LEAVES):
        return ((f".{name}", child) for name, child in _attributes(value).items())
    return None


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an object: the fields of a dataclass; the state of an optimizer without its hooks."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    held = vars(value)
    return {name: held[name] for name in ("state", "param_groups")} if isinstance(value, Optimizer) else held


def _is_object(value: object) -> bool:
    """Return whether ``value`` has attributes and is of a caller's class, such as a cache of keys and values."""
    if isinstance(value, type | Tensor) or callable(value) or is_array(value) or not hasattr(value, "__dict__"):
        return False
    package = type(value).__module__.partition(".")[0]
    return isinstance(value, STATEFUL) or package not in {"torch", "numpy", *sys.stdlib_module_names}


def _leaves_below(value: object, known: dict[int, float], depth: int = 0) -> float:
    """Return the number of leaves that a walk of ``value`` meets; infinite if an object holds itself."""
    if isinstance(value, Mapping):
        held: Iterable[object] = value.values()
    elif isinstance(value, list | tuple | deque):
        held = value
    else:
        held = _attributes(value).values() if _is_object(value) else ()
    if id(value) not in known:
        known[id(value)] = inf  # while those below are counted
        if depth < DEEPEST:
            known[id(value)] = sum(_leaves_below(child, known, depth + 1) for child in held) or 1
    return known[id(value)]
