"""Kernels that run as Python: by Triton's interpreter, or by Numba's simulator. What they cannot do is refused."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from ..device.triton_driver import REGISTERS
from ..kernels.unsupported import INTERPRETED_BFLOAT16, Unsupported
from ..records.debugging import interpreted
from ..records.replaced import replaced
from ..timing.nested import parts

LAUNCHERS = {  # module and class whose calls run a kernel → what they are of
    ("triton.runtime.interpreter", "GridExecutor"): "Triton's interpreter",
    ("numba.cuda.simulator.kernel", "FakeCUDAKernel"): "Numba's simulator",
}
ACCESSES = {  # method of Triton's InterpreterBuilder → what it does, and the place of its pointers and of its mask
    "create_masked_load": ("loads", 0, 1),
    "create_masked_store": ("stores to", 0, 2),
    "create_atomic_rmw": ("changes", 1, 3),
    "create_atomic_cas": ("changes", 0, None),
}
LIBDEVICE = re.compile(  # functions that torch has too: its ``round`` and ``remainder`` compute something else
    "abs|a?(cos|sin|tan)h?|atan2|ceil|copysign|erf(c|inv)?|exp(2|m1)?|floor|fmod|hypot|lgamma|log(10|1p|2)?|pow|r?sqrt|trunc"
)


def untimed(interpreters: Sequence[str], *, checked: bool) -> str:
    """Return why a call whose kernels ran in ``interpreters`` is not timed; "" without any."""
    if not interpreters:
        return ""
    return f"{'correct ' * checked}under {interpreters[0]}; a time there would say nothing about a GPU"


@contextmanager
def interpreting() -> Iterator[list[str]]:
    """Collect which interpreters run kernels in this context.

    A kernel that computes in bfloat16, or does what its interpreter does not support, raises Unsupported. One that
    accesses memory outside of its arguments raises IndexError before it does so. An autotuned kernel runs its first
    configuration, since none has a time.
    """
    ran: list[str] = []
    if interpreted():
        with suppress(ImportError):  # no Triton here, or no interpreter in it
            import_module("triton.runtime.interpreter")
    with ExitStack() as stack:
        for (module, name), interpreter in LAUNCHERS.items():
            if launcher := getattr(sys.modules.get(module), name, None):
                stack.enter_context(replaced(launcher, "__call__", _launch(launcher.__call__, interpreter, ran)))
        if triton := sys.modules.get("triton.runtime.interpreter"):
            for owner, name, method in _replacements(triton):
                stack.enter_context(replaced(owner, name, method))
        if interpreted() and (tuner := getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)):
            stack.enter_context(replaced(tuner, "_bench", lambda *args, **options: [0.0, 0.0, 0.0]))
        yield ran


def _launch(real: Any, interpreter: str, ran: list[str]) -> Any:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        ran.append(interpreter)
        for _, value in parts((args, options)) if interpreter.startswith("Triton") else ():
            if getattr(getattr(value, "base", value), "dtype", None) == torch.bfloat16:  # of a descriptor, too
                raise Unsupported(INTERPRETED_BFLOAT16)
        try:
            return real(self, *args, **options)
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # Triton wraps what a kernel raises
                cause = cause.__cause__
        if isinstance(cause, NotImplementedError):
            raise Unsupported(f"{interpreter} cannot run this kernel ({cause}); run it on a GPU") from cause
        raise cause  # outside of the handler: in it, the chain of causes would be a circle

    return call


def _run(real: Any) -> Any:
    """Return a method with which ``kernel.warmup(...)`` returns the kernel itself, with figures of a compiled one."""
    figures = {"n_regs": REGISTERS, "n_spills": 0, "metadata": SimpleNamespace(shared=1), "_init_handles": lambda: None}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if not warmup:
            return real(self, *args, grid=grid, warmup=False, **options)
        vars(self).update(figures)
        return self

    return run


def _of_libdevice(name: str, *args: Any) -> Any:
    """Return what the function ``name`` of libdevice computes, by torch. Raises NotImplementedError if it cannot."""
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    tensors = [arg for arg in args if isinstance(arg, core.tensor)]
    kind = next((tensor.dtype for tensor in tensors), None)
    if not LIBDEVICE.fullmatch(name) or kind is None or not kind.is_floating():
        raise NotImplementedError(f"libdevice.{name}")
    values = [torch.as_tensor(arg.handle.data if isinstance(arg, core.tensor) else arg) for arg in args]
    data = getattr(torch, name)(*values).numpy()
    is_block = any(tensor.type.is_block() for tensor in tensors)
    return core.tensor(TensorHandle(data, kind), core.block_type(kind, [*data.shape]) if is_block else kind)


def _replacements(triton: Any) -> list[tuple[Any, str, Any]]:
    """Return what Triton's interpreter lacks, or must refuse since a GPU does otherwise: owners, names, new values."""
    executor, builder, function = triton.GridExecutor, triton.InterpreterBuilder, triton.InterpretedFunction
    prepare, to_pointer, cast = executor._init_args_hst, builder.create_int_to_ptr, builder.cast_impl
    tensors: list[tuple[int, int, int, str]] = []  # start and bytes of the memory, address of element 0, name

    def init_args(self: Any, args: Any, options: Any) -> Any:
        args, options = prepare(self, args, options)
        named = [*zip(self.arg_names, args, strict=False), *options.items()]
        found = ((name, getattr(part, "base", part)) for name, value in named for _, part in parts(value))
        held = [(each.untyped_storage(), each, name) for name, each in found if torch.is_tensor(each)]
        tensors[:] = sorted((memory.data_ptr(), memory.nbytes(), each.data_ptr(), name) for memory, each, name in held)
        return args, options

    def int_to_ptr(*args: Any) -> Any:
        tensors.clear()  # addresses in a tensor may lead anywhere
        return to_pointer(*args)

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if to.scalar.name == "bf16" and source.dtype.scalar.name != "bf16":
            raise Unsupported(INTERPRETED_BFLOAT16)
        return cast(self, source, to)

    def checked(real: Any, action: str, pointers: int, mask: int | None) -> Any:
        def access(self: Any, *args: Any) -> Any:
            if tensors and (fault := _outside(tensors, args[pointers], None if mask is None else args[mask])):
                raise IndexError(f"program {self.grid_idx} {action} {fault}: the mask, the offset or the grid is wrong")
            return real(self, *args)

        return access

    return [
        (executor, "_init_args_hst", init_args),
        (function, "run", _run(function.run)),
        (builder, "create_int_to_ptr", int_to_ptr),
        (builder, "cast_impl", cast_impl),
        *((builder, name, checked(getattr(builder, name), *access)) for name, access in ACCESSES.items()),
        *_libdevice(),
    ]


def _libdevice() -> Iterator[tuple[Any, str, Any]]:
    """Yield what makes the functions of libdevice compute, which a compiler would find: without one they do nothing."""

    def wrapper(fn: object) -> Any:  # the code of a function that refers to a name outside fits only such functions
        return lambda *args, name, compute: (fn, compute(name, *args))[1]

    # A function that is imported by name gets new code as well.
    code, of_wrapper = (lambda *args, name, compute: compute(name, *args)).__code__, wrapper(None).__code__
    for module in ("libdevice", "cuda.libdevice"):
        for name, function in vars(import_module(f"triton.language.extra.{module}")).items():
            if isinstance(function, FunctionType):
                yield function, "__kwdefaults__", {"name": name, "compute": _of_libdevice}
                yield function, "__code__", of_wrapper if function.__closure__ else code


def _outside(tensors: Sequence[tuple[int, int, int, str]], pointers: Any, mask: Any) -> str:
    """Return which of ``pointers`` is the first outside of the memory of ``tensors``, in order; "" if none is."""
    import numpy as np  # Triton's interpreter needs it, and bench does not

    addresses = pointers.data.astype(np.int64)
    addresses = addresses.reshape(-1) if mask is None else addresses[mask.data.astype(bool)]
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    starts, sizes, _, _ = map(np.array, zip(*tensors, strict=True))
    ends = starts + sizes
    owners = np.searchsorted(starts, addresses, "right") - 1
    outside = (owners < 0) | (addresses + size > ends[owners])
    if not outside.any():
        return ""
    address = addresses[outside][0]
    nearest = np.maximum(starts - address, address - ends).argmin()
    # Other elements of the same access tell to which tensor the pointers belong.
    start, length, origin, name = tensors[nearest if outside.all() else owners[~outside][0]]
    place, first, last = ((at - origin) // size for at in (address, start, start + length - 1))
    return f"{name} + {place}, outside of its memory ({name} + {first} to {name} + {last})"
