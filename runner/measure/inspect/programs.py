"""The kernels of a call as their compilers made them, seen while the call is made.

Triton's are seen where it launches them, those of CUDA C++ where ``kernels`` does. Of what torch.compile generates, the
graphs are seen as they are run; their Triton kernels stand in the module of each, and their code in Triton's cache.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runner.kernels.cuda_kernel import Kernel

STAGES = ("ttir", "ttgir", "llir", "ptx")


@dataclass(frozen=True)
class Program:
    """One kernel, for the very types, sizes and constants that it was launched with."""

    name: str
    origin: str  # triton | inductor | cuda
    cubin: bytes
    texts: Mapping[str, str] = field(default_factory=dict)  # what came before machine code, by STAGES
    shared_bytes: int = 0  # that a launch asks for
    launches: int = 1


@dataclass
class Seen:
    """What a call launched, in its order."""

    programs: list[Program] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)  # that torch.compile made, each once
    unread: list[str] = field(default_factory=list)  # kernels whose code is not to be had, and why

    def add(self, program: Program) -> None:
        """One launch more."""
        for place, known in enumerate(self.programs):
            if (known.name, known.cubin) == (program.name, program.cubin):
                self.programs[place] = replace(known, launches=known.launches + 1)
                return
        self.programs.append(program)


@contextmanager
def seeing() -> Iterator[Seen]:
    """Meanwhile, every kernel and every generated graph that is run is written down."""
    seen = Seen()
    with _triton(seen), _cuda(seen), _generated(seen):
        yield seen
    for graph in seen.graphs:
        for program in inductor_programs(graph.source_code, seen.unread):
            seen.add(program)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Meanwhile, ``owner.name`` is what ``make`` makes of it."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _triton(seen: Seen) -> Iterator[None]:
    if (jit := sys.modules.get("triton.runtime.jit")) is None:  # nothing can have been made with it
        yield
        return

    def make(run: Any) -> Any:
        def seen_run(self: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = run(self, *args, **kwargs)
            if kernel is not None and hasattr(kernel, "asm"):
                seen.add(of_triton(kernel))
            return kernel

        return seen_run

    with replaced(jit.JITFunction, "run", make):
        yield


def of_triton(kernel: Any) -> Program:
    """What Triton calls a CompiledKernel."""
    texts = {stage: str(kernel.asm[stage]) for stage in STAGES if stage in kernel.asm}
    return Program(
        name=kernel.metadata.name,
        origin="triton",
        cubin=bytes(kernel.asm["cubin"]),
        texts=texts,
        shared_bytes=int(kernel.metadata.shared),
    )


@contextmanager
def _cuda(seen: Seen) -> Iterator[None]:
    def make(launch: Any) -> Any:
        def seen_launch(self: Any, grid: Any, threads: int, *arguments: int, shared: int = 0, **options: Any) -> None:
            launch(self, grid, threads, *arguments, shared=shared, **options)
            _add_cuda(seen, self, shared)

        return seen_launch

    with replaced(Kernel, "__call__", make):
        yield


def _add_cuda(seen: Seen, kernel: Kernel, shared: int) -> None:
    from runner.kernels.cuda_build import builds

    build = next((build for build in reversed(builds) if build.built is kernel), None)
    if build is None:
        return
    if build.builder != "nvrtc":
        seen.unread.append(f"{build.kernel}: built into an extension by nvcc; its code is shown with impl.build=nvrtc")
        return
    seen.add(of_cuda(build.source, build.kernel, build.arch, shared))


def of_cuda(source: Path, name: str, arch: str, shared: int) -> Program:
    """The kernel ``name`` of CUDA C++ for ``arch``, as NVRTC makes it. Raises Unsupported or BuildFailed."""
    from runner.kernels import cuda_nvrtc

    _, cubin, _ = cuda_nvrtc.compiled(source, name, arch)
    return Program(name, "cuda", cubin, {"ptx": cuda_nvrtc.ptx(source, name, arch)}, shared)


@contextmanager
def _generated(seen: Seen) -> Iterator[None]:
    output_code = sys.modules.get("torch._inductor.output_code")
    if output_code is None or not hasattr(output_code, "CompiledFxGraph"):
        yield
        return

    def make(call: Any) -> Any:
        def seen_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(graph is self for graph in seen.graphs):
                seen.graphs.append(self)
            return call(self, *args, **kwargs)

        return seen_call

    with replaced(output_code.CompiledFxGraph, "__call__", make):
        yield


def inductor_programs(source: str, unread: list[str]) -> list[Program]:
    """The Triton kernels of the generated module whose text is ``source``: those of it that have been launched.

    The same text may have been loaded for an earlier case too; one that has launched its kernels says it all.
    """
    codecache = sys.modules.get("torch._inductor.codecache")
    for module in reversed(getattr(getattr(codecache, "PyCodeCache", None), "modules", ())):
        path = getattr(module, "__file__", None)
        if path is None or not Path(path).is_file() or Path(path).read_text(encoding="utf-8") != source:
            continue
        launched = {name: one.launchers[0] for name, one in vars(module).items() if getattr(one, "launchers", None)}
        if not launched:
            continue
        found = {name: _of_inductor(name, launcher) for name, launcher in launched.items()}  # the fastest, if tuned
        unread += [
            f"{name}: it is not in Triton's cache any more" for name, program in found.items() if program is None
        ]
        return [program for program in found.values() if program is not None]
    return []


def _of_inductor(name: str, launcher: Any) -> Program | None:
    """By ``launcher.bin``, which Triton launches; else from its cache: torch's own launcher keeps no code.

    ``name`` is the module's for it. The code's, which CUPTI tells, is another where a kernel is not Inductor's own.
    """
    binary = getattr(launcher, "bin", None)
    if binary is not None and hasattr(binary, "asm"):
        return replace(of_triton(binary), origin="inductor")
    key = getattr(launcher, "cache_hash", None)
    folder = _triton_folder(key) if key else None
    if folder is None:
        return None
    told = [path for path in folder.glob("*.json") if not path.name.startswith("__grp__")]
    cubin = next(iter(folder.glob("*.cubin")), None)
    if cubin is None or not told:
        return None
    metadata = json.loads(told[0].read_text(encoding="utf-8"))
    texts = {
        path.suffix[1:]: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.suffix[1:] in STAGES
    }
    return Program(metadata.get("name", name), "inductor", cubin.read_bytes(), texts, int(metadata.get("shared", 0)))


def _triton_folder(key: str) -> Path | None:
    import torch

    try:
        from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    except ImportError:  # another version keeps it elsewhere
        return None
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    folder = Path(triton_cache_dir(device), key)
    return folder if folder.is_dir() else None


WARP = 32


@contextmanager
def compiling_for(arch: int, *, without_gpu: bool) -> Iterator[Seen]:
    """Meanwhile, Triton kernels and those of CUDA C++ are compiled for ``arch``, 80 or 90, and not launched."""
    seen = Seen()
    with ExitStack() as stack:
        if "triton" in sys.modules:
            stack.enter_context(_without_triton_gpu(seen, arch))
        stack.enter_context(_without_cuda_gpu(seen, arch, without_gpu))
        yield seen


@contextmanager
def _without_triton_gpu(seen: Seen, arch: int) -> Iterator[None]:
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
def _without_cuda_gpu(seen: Seen, arch: int, without_gpu: bool) -> Iterator[None]:
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
