"""Plan a call once, then only allocate and launch.

What an operation does before its first launch depends on shapes, strides, dtypes, alignment and options, not on the
numbers in its tensors: it checks them, chooses tiles and divides the work. In Python that takes longer than the launch.
So ``planned`` records a call: what it allocates, what it launches, and where in which tensor each pointer points. The
next call that looks the same does only that, with the new tensors:

    @planned
    def square(a: Tensor) -> Tensor:
        y = each_time(torch.empty_like, a)
        repeatable(_square)[(triton.cdiv(a.numel(), 1024),)](a, y, a.numel(), BLOCK=1024)
        return y

A plan holds no tensor and no address, so it cannot go stale: memory that was freed and given to another tensor, or
another view of the same storage, is an argument like any other. A call is not planned, and runs as it is written, if

- torch.compile traces it, its result requires a gradient, or a tensor is of a subclass;
- it launches on a tensor that is neither an argument nor made by ``each_time``, or partly on another stream;
- it changes a tensor in place by an operation of torch, such as ``y.zero_()``;
- someone watches launches, as Triton's hooks do, or wants them ``as_written``, or Triton's interpreter runs them.

A function is right to plan if arguments that are equal, up to the numbers in tensors, always lead to the same launches,
all of them by ``repeatable`` or a ``Kernel``. What else they depend on, such as a setting of torch, it asks by
``unchanged``.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor

MOST = 1024  # plans of a function; the oldest one goes first
LINE = 128  # bytes: two addresses look the same if they are equal modulo this, the largest that a kernel asks for
PLAIN = frozenset({Tensor, torch.nn.Parameter})
EMPTY = (torch.empty, torch.empty_like)
# What code of torch.compile calls: sizes, strides and dtype, on the current GPU. It takes half the time of torch.empty.
_empty_strided: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
SIMPLE = frozenset({NoneType, bool, int, float, str, tuple})

Again = Callable[[list[int], int], object]  # launch on the addresses of all tensors of a call, and on a stream
Place = tuple[int, int]  # a tensor of a call, by its number, and bytes behind its first element
Bind = Callable[[Callable[[Tensor], Place]], Again]
Usable = Callable[[], bool]
Plans = dict[tuple[Any, ...], "Plan | None"]
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class _Thread(threading.local):
    recording: Recording | None = None


_this = _Thread()
_NEW: Any = False  # of a call that has no plan yet; None of one that has none
_written = False  # see ``as_written``
_all: list[Plans] = []
_lock = threading.Lock()


def planned(function: Function) -> Function:
    """Decorate ``function`` of tensors, numbers and words, which returns a tensor, a tuple of tensors, or None."""
    plans: Plans = {}
    _all.append(plans)
    last: tuple[Any, Any] = (None, None)  # the key and the plan of the last call: comparing keys is faster than a hash

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal last
        if torch.compiler.is_compiling() or _written or _this.recording is not None:
            return function(*args, **options)
        differentiable = torch.is_grad_enabled()
        known: list[Any] = [*options]
        tensors, addresses = [], []
        for value in (*args, *options.values()) if options else args:
            if (kind := type(value)) in PLAIN:
                address = value.data_ptr()
                recorded = differentiable and value.requires_grad
                known += (value.shape, value.stride(), value.dtype, value.device, address % LINE, recorded)
                tensors.append(value)
                addresses.append(address)
            elif kind not in SIMPLE and isinstance(value, Tensor):
                return function(*args, **options)
            else:
                known.append(value)
        key = tuple(known)
        before, plan = last
        try:
            if key != before or not plans:
                plan = plans.get(key, _NEW)
                last = (key, plan) if plan else (None, None)
        except (TypeError, ValueError):  # an option that cannot be a key, such as a list or an array
            plan = None
        device = plan.device if plan else _device_of(tensors)
        if device >= 0 and torch._C._cuda_getDevice() != device:
            with torch.cuda.device(device):
                return call(*args, **options)
        if plan is _NEW:
            return _record(function, args, options, tensors, plans, key)
        if plan is None:
            return function(*args, **options)
        for usable in plan.usable:
            if not usable():
                return function(*args, **options)
        for ask, answer in plan.answers:
            if ask() != answer:
                last = (None, None)
                return _record(function, args, options, tensors, plans, key)
        return plan(tensors, addresses)

    call.plans = plans  # type: ignore[attr-defined]  # for tests
    return call  # type: ignore[return-value]


@contextmanager
def as_written() -> Iterator[None]:
    """Run every call as it is written inside this context, in all threads, so that its launches can be replaced."""
    global _written
    before, _written = _written, True
    try:
        yield
    finally:
        _written = before


def forget() -> None:
    """Drop all plans, since something beside the arguments has changed, such as a constant of a module in a test."""
    with _lock:
        for plans in _all:
            plans.clear()


def each_time(make: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """Return ``make(*args, **options)``, and have a plan call it again at each launch.

    If the result is a tensor that ``make`` allocates, kernels may be launched on it. Tensors that ``make`` needs are
    positional arguments, and arguments of the planned function or earlier results: a plan must not hold any.
    """
    result = make(*args, **options)
    if not torch.compiler.is_compiling() and _this.recording is not None:
        _this.recording.make(make, args, options, result)
    return result


def unchanged(ask: Callable[[], Result]) -> Result:
    """Return ``ask()``, such as a setting of torch. A plan is used only as long as that returns the same."""
    answer = ask()
    if not torch.compiler.is_compiling() and _this.recording is not None:
        _this.recording.answers.append((ask, answer))
    return answer


def record(usable: Usable, bind: Bind) -> None:
    """Tell the call that is being recorded, if there is one, of a launch.

    Args:
        usable: whether a plan may be used now. If not, the launch is being watched.
        bind: gets a function that finds the place of a tensor, and returns how to launch again; raises ``Unplanned`` if
            the launch cannot be repeated.

    """
    if not torch.compiler.is_compiling() and _this.recording is not None:
        _this.recording.launch(usable, bind)


def _device_of(tensors: Sequence[Tensor]) -> int:
    """Return the number of the GPU of the first tensor; -1 for a CPU."""
    return tensors[0].get_device() if tensors and tensors[0].is_cuda else -1


class Unplanned(Exception):
    """A launch that cannot be repeated by a plan."""


class Plan:
    """What a call does, for any tensors that look like those of the recorded call."""

    def __init__(self, recording: Recording, results: list[int | None] | int | None) -> None:
        self.usable = tuple(dict.fromkeys(recording.usable))
        self.answers = tuple(recording.answers)
        self._steps = tuple(recording.steps)
        self.device = recording.device
        self._results = results

    def __call__(self, tensors: list[Tensor], addresses: list[int]) -> Any:
        """Run the steps. Both lists hold the arguments, and get what is made."""
        stream = torch._C._cuda_getCurrentRawStream(self.device) if self.device >= 0 else 0
        for again, make, args, options, places in self._steps:
            if again is not None:
                again(addresses, stream)
                continue
            if places:
                args = [*args]
                for at, number in places:
                    args[at] = tensors[number]
            made = make(*args, **options) if options else make(*args)
            if isinstance(made, Tensor):
                tensors.append(made)
                addresses.append(made.data_ptr())
        results = self._results
        if isinstance(results, list):
            return tuple(None if one is None else tensors[one] for one in results)
        return None if results is None else tensors[results]


class Recording:
    """The steps of a call, while it runs."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.device = _device_of(tensors)
        self.usable: list[Usable] = []
        self.answers: list[tuple[Callable[[], Any], Any]] = []  # of ``unchanged``
        self.steps: list[tuple[Any, ...]] = []
        self.possible = True
        self.watched = False
        self._tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # of the tensor that a storage belongs to
        self._versions: list[int | None] = []
        self._stream = self._now()
        for tensor in tensors:
            self._add(tensor)

    def _now(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self.device)) if self.device >= 0 else 0

    def _add(self, tensor: Tensor) -> None:
        self._numbers[tensor.untyped_storage()._cdata] = len(self._tensors)
        self._tensors.append(tensor)
        self.possible &= tensor.device == self._tensors[0].device
        self._versions.append(None if tensor.is_inference() else tensor._version)

    def _number(self, tensor: Tensor) -> int:
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            raise Unplanned("a tensor that is neither an argument nor made by each_time")
        return number

    def _same(self, tensor: Tensor) -> int:
        """Return the number of an argument, or of what was made, itself."""
        number = self._number(tensor)
        if tensor is not self._tensors[number]:
            raise Unplanned("a view")
        return number

    def _place(self, tensor: Tensor) -> Place:
        number = self._number(tensor)
        # The address of a tensor without elements is 0, which is no place in its storage.
        return number, tensor.data_ptr() - self._tensors[number].data_ptr() if tensor.numel() else 0

    def make(self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
        """Add a call of ``each_time``."""
        dropped = [None if isinstance(value, Tensor) else value for value in args]
        try:
            places = [(at, self._same(value)) for at, value in enumerate(args) if isinstance(value, Tensor)]
            if _holds((make, *dropped, *options.values())):
                raise Unplanned("a tensor that a plan would hold")
        except Unplanned:
            self.possible = False
            return
        if make in EMPTY and _empty_strided and type(result) is Tensor and result.is_cuda and not result.requires_grad:
            make, dropped = _empty_strided, [tuple(result.shape), result.stride(), result.dtype]
            options, places = {}, []
        self.steps.append((None, make, dropped, options, places))
        if isinstance(result, Tensor):
            # Memory that is known already, such as a view of an argument, would have two numbers.
            self.possible &= result.untyped_storage()._cdata not in self._numbers
            self._add(result)

    def launch(self, usable: Usable, bind: Bind) -> None:
        """Add a launch."""
        self.watched |= not usable()
        if self.watched:
            return
        try:
            again = bind(self._place)
        except Unplanned:
            self.possible = False
            return
        self.possible &= self._now() == self._stream
        self.usable.append(usable)
        self.steps.append((again, None, (), {}, ()))

    def plan(self, result: Any) -> Plan | None:
        """Return the plan of a call with this result; None if it must be run as it is written."""
        changed = any(
            known is not None and tensor._version != known
            for tensor, known in zip(self._tensors, self._versions, strict=True)
        )
        if changed or not self.possible:
            return None
        many = result if type(result) is tuple else (result,)
        if any(isinstance(one, Tensor) and one.grad_fn is not None for one in many):
            return None
        try:
            numbers = [None if one is None else self._same(one) for one in many]
        except (AttributeError, Unplanned):
            return None
        return Plan(self, numbers if type(result) is tuple else numbers[0])

    def given(self, result: Any, tensors: Sequence[Tensor]) -> Any:
        """Return ``result`` with the caller's ``tensors`` in place of their stand-ins."""
        if type(result) is tuple:
            return tuple(self.given(one, tensors) for one in result)
        return next((own for own, one in zip(tensors, self._tensors, strict=False) if one is result), result)


def _holds(value: Any) -> bool:
    """Return whether ``value`` may hold a tensor: a closure, a method of a tensor, or a container of one."""
    if isinstance(value, list | tuple):
        return any(isinstance(one, Tensor) or _holds(one) for one in value)
    held = isinstance(getattr(value, "__self__", None), Tensor) or getattr(value, "__closure__", None)
    return bool(held) or isinstance(value, dict | partial)


def _record(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    tensors: list[Tensor],
    plans: Plans,
    key: tuple[Any, ...],
) -> Any:
    """Return the result of ``function``, and keep its plan."""
    apart = _apart(tensors)
    replaced = any(map(operator.is_not, apart, tensors))
    if not tensors or (replaced and torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return function(*args, **options)
    stand_ins = iter(apart)
    recording = Recording(apart)
    swapped = [next(stand_ins) if isinstance(value, Tensor) else value for value in args]
    more = {name: next(stand_ins) if isinstance(value, Tensor) else value for name, value in options.items()}
    _this.recording = recording
    try:
        result = function(*swapped, **more)
    finally:
        _this.recording = None
    if not recording.watched and (recording.usable or not recording.possible):  # else the next call may be different
        plan = recording.plan(result)
        with _lock:
            while len(plans) >= MOST:
                del plans[next(iter(plans))]
            plans[key] = plan
    return recording.given(result, tensors)


def _apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return ``tensors``; one that shares a storage with another is replaced by one with a storage of its own.

    It has the same memory. So where a view of it points is known to depend on this argument and not on the other one.
    """
    seen: set[int] = set()
    apart = []
    for x in tensors:
        storage = x.untyped_storage()
        if storage._cdata in seen:
            own = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), x.device, storage.nbytes())
            x = torch.empty(0, dtype=x.dtype, device=x.device).set_(own, x.storage_offset(), x.shape, x.stride())
        seen.add(x.untyped_storage()._cdata)
        apart.append(x)
    return apart
