"""Kernels that run as Python: by Triton's interpreter, or by Numba's simulator. What they cannot do is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any

import torch

from ..kernels.unsupported import INTERPRETED_BFLOAT16, Unsupported
from ..records.debugging import interpreted
from ..records.replaced import replaced
from ..timing.nested import parts

LAUNCHERS = {  # module and class whose calls run a kernel → what they are of
    ("triton.runtime.interpreter", "GridExecutor"): "Triton's interpreter",
    ("numba.cuda.simulator.kernel", "FakeCUDAKernel"): "Numba's simulator",
}


def untimed(interpreters: Sequence[str], *, checked: bool) -> str:
    """Return why a call whose kernels ran in ``interpreters`` is not timed; "" without any."""
    if not interpreters:
        return ""
    return f"{'correct ' * checked}under {interpreters[0]}; a time there would say nothing about a GPU"


@contextmanager
def interpreting() -> Iterator[list[str]]:
    """Collect which interpreters run kernels in this context.

    A kernel that computes in bfloat16, or does what its interpreter does not support, raises Unsupported. A Triton
    kernel that writes outside of its tensors raises IndexError, where it would damage this process. An autotuned kernel
    runs its first configuration, since none has a time.
    """
    ran: list[str] = []
    tensors: list[range] = []  # the addresses of those of the kernel that runs; none if it makes pointers from numbers
    if interpreted():
        with suppress(ImportError):  # no Triton here, or no interpreter in it
            import_module("triton.runtime.interpreter")
    with ExitStack() as stack:
        for (module, name), interpreter in LAUNCHERS.items():
            if launcher := getattr(sys.modules.get(module), name, None):
                stack.enter_context(
                    replaced(launcher, "__call__", _launch(launcher.__call__, interpreter, ran, tensors))
                )
        if triton := sys.modules.get("triton.runtime.interpreter"):
            builder, memory = triton.InterpreterBuilder, triton._interpreter
            stack.enter_context(replaced(builder, "cast_impl", _cast(builder.cast_impl)))
            stack.enter_context(replaced(builder, "create_int_to_ptr", _to_pointer(builder.create_int_to_ptr, tensors)))
            stack.enter_context(replaced(memory, "store", _store(memory.store, tensors)))
        if interpreted() and (tuner := getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)):
            stack.enter_context(replaced(tuner, "_bench", lambda *args, **options: [0.0, 0.0, 0.0]))
        yield ran


def _launch(real: Any, interpreter: str, ran: list[str], tensors: list[range]) -> Any:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        ran.append(interpreter)
        tensors.clear()
        for _, value in parts((args, options)) if interpreter.startswith("Triton") else ():
            tensor = getattr(value, "base", value)  # of a descriptor, too
            if getattr(tensor, "dtype", None) == torch.bfloat16:
                raise Unsupported(INTERPRETED_BFLOAT16)
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                tensors.append(range(storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        try:
            return real(self, *args, **options)
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # Triton wraps what a kernel raises
                cause = cause.__cause__
            if isinstance(cause, Unsupported | IndexError):
                raise cause from None
            if isinstance(cause, NotImplementedError):
                raise Unsupported(f"{interpreter} cannot run this kernel ({cause}); run it on a GPU") from error
            raise

    return call


def _to_pointer(real: Any, tensors: list[range]) -> Any:
    def create_int_to_ptr(*args: Any) -> Any:
        tensors.clear()
        return real(*args)

    return create_int_to_ptr


def _store(real: Any, tensors: list[range]) -> Any:
    def store(pointers: Any, values: Any, mask: Any) -> Any:
        outside = mask & bool(tensors)
        for inside in tensors:
            outside &= (pointers < inside.start) | (pointers + values.itemsize > inside.stop)
        if count := int(outside.sum()):
            raise IndexError(f"{count} of the {outside.size} elements of a store are outside of the kernel's tensors")
        return real(pointers, values, mask)

    return store


def _cast(real: Any) -> Any:
    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if to.scalar.name == "bf16" and source.dtype.scalar.name != "bf16":
            raise Unsupported(INTERPRETED_BFLOAT16)
        return real(self, source, to)

    return cast_impl
