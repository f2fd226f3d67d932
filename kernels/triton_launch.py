"""Launch a compiled Triton kernel again, without Triton's way to it.

``kernel[grid](...)`` looks at each argument to find the compiled kernel, and its launcher asks the driver about each
pointer. Here both are known. What is called is the launcher that Triton has compiled for the kernel, a function in C:
its first arguments differ between versions of Triton. For a version that is not listed, Triton's launcher in Python
calls it.

A descriptor of the tensor memory accelerator depends on nothing but its address here, so those of recent addresses are
kept: PyTorch's allocator gives the same memory again and again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from .launch import Again, Place, Unplanned, record
from .launch import each_time as each_time  # other modules import these three from here
from .launch import planned as planned
from .launch import unchanged as unchanged
from .triton_device import on_device_of, triton_version

VERSION = triton_version()
KEPT = 64  # descriptors of an argument

Direct: TypeAlias = tuple[Any, tuple[Any, ...], bool]  # see ``_direct``


def repeatable(kernel: Any) -> Any:
    """Return ``kernel``, so that a plan can repeat a launch with ``repeatable(kernel)[grid](...)``; see ``launch``.

    The launch is on the GPU of the first tensor among the arguments. It returns the compiled kernel, as Triton's does.
    """
    return kernel if torch.compiler.is_compiling() else _Repeatable(kernel)


class _Repeatable:
    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*args: Any, **options: Any) -> Any:
            with on_device_of(next(word for word in args if isinstance(word, Tensor))):
                compiled = self._kernel[grid](*args, **options)
            record(unwatched, lambda place: _bound(compiled, self._kernel, grid, args, options, place))
            return compiled

        return launch


def _bound(
    compiled: Any,
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    options: dict[str, Any],
    place: Callable[[Tensor], Place],
) -> Again:
    """Return how to launch ``compiled`` again, the result of ``kernel[grid](*args, **options)``.

    Raises Unplanned if it cannot: an interpreted kernel, one that is tuned, or one with hooks of its own.
    """
    run = getattr(compiled, "run", None)
    plain = isinstance(kernel, JITFunction) and type(run).__name__ == "CudaLauncher" and isinstance(grid, tuple)
    if not plain or kernel.pre_run_hooks:
        raise Unplanned("not by Triton's launcher for CUDA")
    named = {**dict(zip(kernel.arg_names, args, strict=False)), **options}
    parameters = [one for one in kernel.params if VERSION > (3, 2) or not one.is_constexpr]
    given = [named.get(one.name, one.default) for one in parameters]
    launcher = _direct(compiled)
    metas = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    by_run: Direct = (run, (compiled.function, compiled.packed_metadata, None, None, None), False)
    call, head, as_list = launcher or by_run
    x, y, z = (*grid, 1, 1)[:3]
    values: list[Any] = [] if as_list else [x, y, z, None, *head]  # None: the stream
    pointers: list[tuple[int, int, int]] = []
    descriptors: list[tuple[int, int, int, dict[int, Any], Callable[[int], Any]]] = []
    for value in given:
        if isinstance(value, Tensor):
            pointers.append((len(values), *place(value)))
            values.append(None)
        elif hasattr(value, "block_shape") and hasattr(value, "base"):
            make, meta = _maker(value), next(metas, None)
            expanded: list[Any] = [None]
            if launcher is not None:
                from triton.backends.nvidia.driver import make_tensordesc_arg

                if meta is None:
                    raise Unplanned("a descriptor that the compiler has replaced by a pointer")
                expanded = make_tensordesc_arg(value, meta)
                make = _first(make_tensordesc_arg, make, meta)
            descriptors.append((len(values), *place(value.base), {}, make))
            values += [None, *expanded[1:]]
        elif isinstance(value, tuple | list):
            raise Unplanned("a tuple, which may hold tensors")
        else:
            values.append(value)

    def again(addresses: list[int], stream: int) -> None:
        now = values.copy()
        for at, number, offset in pointers:
            now[at] = addresses[number] + offset
        for at, number, offset, kept, make in descriptors:
            address = addresses[number] + offset
            known = kept.get(address)
            if known is None:
                if len(kept) >= KEPT:
                    kept.clear()
                known = kept[address] = make(address)
            now[at] = known
        if as_list:
            call(x, y, z, stream, *head, now)
        else:
            now[3] = stream
            call(*now)

    return again


def _direct(compiled: Any) -> Direct | None:
    """Return the launcher in C, what it takes between the stream and the kernel's arguments, and if these are a list.

    None if this version of Triton is not known, or if the kernel needs memory that Triton's launcher allocates.
    """
    run = compiled.run
    if VERSION not in ((3, 6), (3, 7)) or run.global_scratch_size or run.profile_scratch_size:
        return None
    modes = (compiled.function, run.launch_cooperative_grid, run.launch_pdl)
    packed = (compiled.packed_metadata, None, None, None)  # launch_metadata and two hooks
    if VERSION == (3, 6):
        inner = inspect.getclosurevars(run.launch).nonlocals if inspect.isfunction(run.launch) else {}
        return inner.get("launcher", run.launch), (*modes, None, None, *packed), False
    launch = triton.runtime.driver.active.utils.launch
    return launch, (*modes, *packed, None, None, run.arg_annotations, run.kernel_signature), True


class _At:
    """Stand-in for a tensor at an address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def _maker(descriptor: Any) -> Callable[[int], Any]:
    """Return a function that makes ``descriptor`` at another address."""
    template = copy.copy(descriptor)
    template.base = None

    def make(address: int) -> Any:
        made = copy.copy(template)
        made.base = _At(address)
        return made

    return make


def _first(expand: Callable[[Any, Any], list[Any]], make: Callable[[int], Any], meta: Any) -> Callable[[int], Any]:
    return lambda address: expand(make(address), meta)[0]


def unwatched() -> bool:
    """Return whether nobody watches launches: no hook of Triton, and nothing in the place of ``JITFunction.run``."""
    before, after = _HOOKS.launch_enter_hook, _HOOKS.launch_exit_hook  # chains of hooks from Triton 3.5 on
    quiet = not (getattr(before, "calls", before) or getattr(after, "calls", after))
    return quiet and JITFunction.run.__module__ == JITFunction.__module__


def _hooks() -> Any:
    """Return the object that has Triton's launch hooks."""
    if hasattr(triton, "knobs"):
        return triton.knobs.runtime
    from triton.compiler import CompiledKernel  # until Triton 3.3

    return CompiledKernel


_HOOKS = _hooks()
