"""Kernels compiled for a GPU that is not here, and not launched: what a call would launch, it compiles.

Triton is told that it has such a GPU, and only warms its kernels up. Where there is no GPU at all, the kernels of this
repository are also told that their tensors may be on a CPU; one that asks the GPU how large it is cannot be seen so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runner.measure.inspect.programs import Seen, of_cuda, of_triton, replaced

WARP = 32


@contextmanager
def compiling_for(arch: int, *, without_gpu: bool) -> Iterator[Seen]:
    """Meanwhile, Triton kernels and those of CUDA C++ are compiled for ``arch``, 80 or 90, and not launched."""
    seen = Seen()
    with ExitStack() as stack:
        if "triton" in sys.modules:
            stack.enter_context(_triton(seen, arch))
        stack.enter_context(_cuda(seen, arch, without_gpu))
        yield seen


@contextmanager
def _triton(seen: Seen, arch: int) -> Iterator[None]:
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    here = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", arch, WARP),
        get_current_device=lambda: -arch,  # Triton keeps what it has compiled by the number of the device
        get_current_stream=lambda device: 0,
    )

    def make(run: Any) -> Any:
        def compile_only(self: Any, *args: Any, grid: Any = None, warmup: bool = True, **options: Any) -> Any:
            kernel = run(self, *args, grid=grid, warmup=True, **options)
            seen.add(of_triton(kernel))
            return kernel

        return compile_only

    # Not set_active: to undo it one has to ask for the driver before, and where there is no GPU there is none.
    attribute = "_active" if hasattr(driver, "_active") else "active"  # the second until Triton 3.3
    with replaced(driver, attribute, lambda before: here), replaced(JITFunction, "run", make):
        yield


class _Compiled:
    """Instead of a kernel of CUDA C++: launched, it is compiled."""

    def __init__(self, seen: Seen, source: Path, name: str, arch: str) -> None:
        self._seen, self._source, self._name, self._arch = seen, source, name, arch

    def __call__(self, grid: object, threads: int, *arguments: int, shared: int = 0, **options: object) -> None:
        self._seen.add(of_cuda(self._source, self._name, self._arch, shared))

    def runs_clusters(self, cluster: int, threads: int) -> bool:
        return True


@contextmanager
def _cuda(seen: Seen, arch: int, without_gpu: bool) -> Iterator[None]:
    """Where kernels of this repository ask for CUDA C++, they get it compiled, and may be told that a CPU is a GPU."""
    from runner.kernels import cuda_build

    target = f"sm_{arch}{'a' if arch >= 90 else ''}"

    def kernel(source: Path, name: str, builder: str, device: object) -> _Compiled:
        return _Compiled(seen, source, name, target)

    instead: dict[str, tuple[Any, Any]] = {"kernel": (cuda_build.kernel, kernel)}
    if without_gpu and (triton_device := sys.modules.get("runner.kernels.triton_device")):
        instead["require_gpu"] = triton_device.require_gpu, lambda x: None
    with ExitStack() as stack:
        for module in [module for name, module in list(sys.modules.items()) if name.startswith("runner.kernels.")]:
            for name, (real, other) in instead.items():
                if vars(module).get(name) is real:
                    stack.enter_context(replaced(module, name, lambda before, other=other: other))  # type: ignore[misc]
        yield
