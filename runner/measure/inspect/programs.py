"""The kernels of a call as their compilers made them, recorded while the call is made.

Triton's kernels are recorded where Triton launches them, kernels in CUDA C++ where ``runner.kernels`` does. Graphs of
torch.compile are recorded when they run; their Triton kernels are in the module of each graph, and the code in Triton's
cache.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from runner.kernels import unsupported
from runner.kernels.cuda_kernel import Kernel

STAGES = ("ttir", "ttgir", "llir", "ptx")
WARP = 32


@dataclass(frozen=True)
class Program:
    """One kernel, for the types, sizes and constants that it was launched with."""

    name: str
    origin: str  # triton | inductor | cuda
    cubin: bytes
    texts: Mapping[str, str] = field(default_factory=dict)  # the stages before machine code, by STAGES
    shared_bytes: int = 0  # requested by the launch
    launches: int = 1


@dataclass
class Seen:
    """What a call launched, in its order."""

    programs: list[Program] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)  # of torch.compile, each once
    unread: list[str] = field(default_factory=list)  # kernels whose code cannot be read, and why

    def add(self, program: Program) -> None:
        """Count a launch of ``program``."""
        for place, known in enumerate(self.programs):
            if (known.name, known.cubin) == (program.name, program.cubin):
                self.programs[place] = replace(known, launches=known.launches + 1)
                return
        self.programs.append(program)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace ``owner.name`` by what ``make`` returns for it, inside this context."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def loaded_kernels(name: str = "") -> list[ModuleType]:
    """Return ``runner.kernels.<name>`` and the same of git revisions, as far as they are imported; "": all modules.

    Packages of revisions have names of their own, and share the module ``unsupported`` with ``runner.kernels``.
    """
    packages = [full.removesuffix(".unsupported") for full, one in list(sys.modules.items()) if one is unsupported]
    if name:
        return [sys.modules[f"{package}.{name}"] for package in packages if f"{package}.{name}" in sys.modules]
    begins = tuple(f"{package}." for package in packages)
    return [module for full, module in list(sys.modules.items()) if full.startswith(begins)]


@contextmanager
def seeing() -> Iterator[Seen]:
    """Record every kernel and every generated graph that runs inside this context."""
    seen = Seen()

    def triton_run(run: Any) -> Any:
        def recording_run(self: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = run(self, *args, **kwargs)
            if kernel is not None and hasattr(kernel, "asm"):
                seen.add(of_triton(kernel))
            return kernel

        return recording_run

    def cuda_launch(launch: Any) -> Any:
        def recording_launch(self: Any, *arguments: Any, shared: int = 0, **options: Any) -> None:
            launch(self, *arguments, shared=shared, **options)
            _add_cuda(seen, self, shared)

        return recording_launch

    def graph_call(call: Any) -> Any:
        def recording_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(graph is self for graph in seen.graphs):
                seen.graphs.append(self)
            return call(self, *args, **kwargs)

        return recording_call

    with ExitStack() as stack:
        for module in loaded_kernels("cuda_kernel"):
            stack.enter_context(replaced(module.Kernel, "__call__", cuda_launch))
        if jit := sys.modules.get("triton.runtime.jit"):  # not imported: nothing can use it
            stack.enter_context(replaced(jit.JITFunction, "run", triton_run))
        if graph := getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None):
            stack.enter_context(replaced(graph, "__call__", graph_call))
        yield seen
    for graph in seen.graphs:
        for program in inductor_programs(graph.source_code, seen.unread):
            seen.add(program)


def of_triton(kernel: Any) -> Program:
    """Return the program of Triton's CompiledKernel."""
    return Program(
        name=kernel.metadata.name,
        origin="triton",
        cubin=bytes(kernel.asm["cubin"]),
        texts={stage: str(kernel.asm[stage]) for stage in STAGES if stage in kernel.asm},
        shared_bytes=int(kernel.metadata.shared),
    )


def of_cuda(source: Path, name: str, arch: str, shared: int, builder: Any = None) -> Program:
    """Return the kernel ``name`` of CUDA C++, as NVRTC compiles it for ``arch``. Raises Unsupported or BuildFailed.

    ``builder`` is the module ``cuda_build`` of a git revision; None: the working tree's.
    """
    from runner.kernels import cuda_build

    nvrtc = (builder or cuda_build).cuda_nvrtc
    _, cubin, _ = nvrtc.compiled(source, name, arch)
    return Program(name, "cuda", cubin, {"ptx": nvrtc.ptx(source, name, arch)}, shared)


def _add_cuda(seen: Seen, kernel: Kernel, shared: int) -> None:
    every = ((build, module) for module in loaded_kernels("cuda_build") for build in reversed(module.builds))
    build, builder = next(((build, module) for build, module in every if build.built is kernel), (None, None))
    if build is None:
        return
    if build.builder != "nvrtc":
        seen.unread.append(f"{build.kernel}: built into an extension by nvcc; its code is shown with impl.build=nvrtc")
        return
    seen.add(of_cuda(build.source, build.kernel, build.arch, shared, builder))


def inductor_programs(source: str, unread: list[str]) -> list[Program]:
    """Return the launched Triton kernels of the generated module with the text ``source``; add others to ``unread``.

    An earlier case may have loaded a module with the same text. Any of them that launched its kernels has them all.
    """
    codecache = sys.modules.get("torch._inductor.codecache")
    for module in reversed(getattr(getattr(codecache, "PyCodeCache", None), "modules", ())):
        path = getattr(module, "__file__", None)
        if path is None or not Path(path).is_file() or Path(path).read_text(encoding="utf-8") != source:
            continue
        launched = {name: one.launchers[0] for name, one in vars(module).items() if getattr(one, "launchers", None)}
        if not launched:
            continue
        found = {name: inductor_program(name, launcher) for name, launcher in launched.items()}  # the fastest, if tuned
        unread += [f"{name}: it is no longer in Triton's cache" for name, program in found.items() if program is None]
        return [program for program in found.values() if program is not None]
    return []


def inductor_program(name: str, launcher: Any) -> Program | None:
    """Return the program of an Inductor ``launcher``; None if its code is not in Triton's cache.

    Triton's launcher has the code, torch's static launcher only the key of Triton's cache. ``name`` is the module's
    name for the kernel. The cache has the code's name, which CUPTI reports; the two differ for a user's kernel.
    """
    binary = getattr(launcher, "bin", None)
    if binary is not None and hasattr(binary, "asm"):
        return replace(of_triton(binary), origin="inductor")
    key = getattr(launcher, "cache_hash", None)
    by_stage = _cached_files(key) if key else {}
    if not {"json", "cubin"} <= by_stage.keys():
        return None
    metadata = json.loads(by_stage["json"].read_text(encoding="utf-8"))
    texts = {stage: by_stage[stage].read_text(encoding="utf-8") for stage in STAGES if stage in by_stage}
    cubin, shared_bytes = by_stage["cubin"].read_bytes(), int(metadata.get("shared", 0))
    return Program(metadata.get("name", name), "inductor", cubin, texts, shared_bytes)


def _cached_files(key: str) -> dict[str, Path]:
    """Return the files of a kernel in Triton's cache, by their suffixes; empty if they are gone."""
    import torch

    try:
        from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    except ImportError:  # other versions of torch have it elsewhere
        return {}
    folder = Path(triton_cache_dir(torch.cuda.current_device() if torch.cuda.is_available() else 0), key)
    return {path.suffix[1:]: path for path in folder.glob("*.*") if not path.name.startswith("__grp__")}


@contextmanager
def compiling_for(arch: int, *, without_gpu: bool) -> Iterator[Seen]:
    """Compile kernels of Triton and CUDA C++ for ``arch``, such as 90, inside this context, and do not launch them.

    ``without_gpu``: let kernel files accept tensors on a CPU.
    """
    seen = Seen()
    with ExitStack() as stack:
        if "triton" in sys.modules:
            stack.enter_context(_compiling_triton(seen, arch))
        stack.enter_context(_compiling_cuda(seen, arch, without_gpu))
        yield seen


@contextmanager
def _compiling_triton(seen: Seen, arch: int) -> Iterator[None]:
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    target = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", arch, WARP),
        get_current_device=lambda: -arch,  # Triton caches compiled kernels by the number of the device
        get_current_stream=lambda device: 0,
    )

    def make(run: Any) -> Any:
        def compiling_run(self: Any, *args: Any, grid: Any = None, warmup: bool = True, **options: Any) -> Any:
            kernel = run(self, *args, grid=grid, warmup=True, **options)
            seen.add(of_triton(kernel))
            return kernel

        return compiling_run

    # Not driver.set_active: undoing it needs the present driver, and without a GPU there is none.
    attribute = "_active" if hasattr(driver, "_active") else "active"  # "active" until Triton 3.3
    with replaced(driver, attribute, lambda before: target), replaced(JITFunction, "run", make):
        yield


class _Compiled:
    """Takes the place of a kernel in CUDA C++: a launch compiles it."""

    def __init__(self, seen: Seen, builder: Any, source: Path, name: str, arch: str) -> None:
        self._seen, self._builder, self._source, self._name, self._arch = seen, builder, source, name, arch

    def __call__(self, grid: object, threads: int, *arguments: int, shared: int = 0, **options: object) -> None:
        self._seen.add(of_cuda(self._source, self._name, self._arch, shared, self._builder))

    def runs_clusters(self, cluster: int, threads: int) -> bool:
        return True


@contextmanager
def _compiling_cuda(seen: Seen, arch: int, without_gpu: bool) -> Iterator[None]:
    """Give kernel files compiled kernels instead of kernels that can be launched, and lift their demand for a GPU."""
    target = f"sm_{arch}{'a' if arch >= 90 else ''}"

    def kernel_of(module: ModuleType) -> Any:
        return lambda source, name, builder, device: _Compiled(seen, module, source, name, target)

    builders = loaded_kernels("cuda_build")
    instead: list[tuple[str, Any, Any]] = [("kernel", module.kernel, kernel_of(module)) for module in builders]
    if without_gpu:
        instead += [("require_gpu", each.require_gpu, lambda x: None) for each in loaded_kernels("triton_device")]
    with ExitStack() as stack:
        for module in loaded_kernels():
            for name, real, other in instead:
                if vars(module).get(name) is real:
                    stack.enter_context(replaced(module, name, lambda before, other=other: other))  # type: ignore[misc]
        yield
