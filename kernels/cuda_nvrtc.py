"""Compile CUDA C++ with NVRTC, a library that comes with torch. It needs neither nvcc nor a host compiler.

https://docs.nvidia.com/cuda/nvrtc
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import cuda_cache, cuda_sources
from .cuda_kernel import Argument, BuildFailed, Grid, Kernel, divided
from .launch import Again, Place
from .unsupported import Unsupported

FLAGS = {"std": "c++17", "lineinfo": True}  # lineinfo is for profilers and does not change the machine code
HEADER = "cuda_runtime_api.h"  # every folder with CUDA's headers has this file
HELP = 'pip install "cuda-core[cu13]", or [cu12] beside a torch for CUDA 12'


def build(source: Path, name: str, arch: str, device: int) -> tuple[Kernel, bool]:
    """Return the kernel ``name`` of ``source``, and whether it was found on disk. See ``kernels.cuda_build.kernel``."""
    symbol, cubin, cached = compiled(source, name, arch)
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(cubin, symbol_mapping={symbol: symbol.encode()})  # some versions encode no str
    return _Kernel(code.get_kernel(symbol), device, symbol), cached


def compiled(source: Path, name: str, arch: str) -> tuple[str, bytes, bool]:
    """Compile the kernel ``name`` of ``source``. No GPU is needed.

    Args:
        source: a ``.cu`` file.
        name: the C++ name with template arguments.
        arch: the target, such as ``"sm_80"`` or ``"sm_90a"``.

    Returns:
        The kernel's symbol, the cubin that contains it, and whether the cubin was found on disk.

    Raises:
        Unsupported: cuda.core, NVRTC or CUDA's headers are missing, or NVRTC does not know ``arch``.
        BuildFailed: the source does not compile.

    """
    version = _version()
    headers = _headers()
    texts = cuda_sources.closure(source, headers)
    wanted = cuda_cache.key("nvrtc", version, source.name, name, arch, FLAGS, sources=texts) + ".cubin"
    if kept := cuda_cache.read(wanted):
        words, cubin = kept
        return words["symbol"], cubin, True
    symbol, cubin = _compile(source, name, arch, headers)
    cuda_cache.write(wanted, {"kernel": name, "symbol": symbol}, cubin)
    return symbol, cubin, False


def ptx(source: Path, name: str, arch: str) -> str:
    """Return the kernel ``name`` of ``source`` in PTX, for people to read. Raises as ``compiled`` does.

    This calls NVRTC directly, since cuda.core needs a driver for PTX. The result is not cached.
    """
    _version()
    from cuda.bindings import nvrtc

    places = [f"--include-path={place}" for place in (source.parent, *_headers())]
    words = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", "--std=c++17", *places]
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), str(source).encode(), 0, None, None)
    try:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildFailed(f"NVRTC: {name} for {arch}: no PTX ({status})")
        _, size = nvrtc.nvrtcGetPTXSize(program)
        text = b" " * size
        nvrtc.nvrtcGetPTX(program, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return str(text.rstrip(b"\0 ").decode())


def _compile(source: Path, name: str, arch: str, headers: list[Path]) -> tuple[str, bytes]:
    from cuda.core import Program, ProgramOptions

    places = [str(place) for place in (source.parent, *headers)]
    options = ProgramOptions(name=str(source), arch=arch, include_path=places, **FLAGS)
    try:
        program = Program(source.read_text(encoding="utf-8"), "c++", options)
        code = program.compile("cubin", name_expressions=(name,))
    except Exception as error:
        raise _build_error(error, source, name, arch) from error
    symbol = code.symbol_mapping[name]
    return symbol.decode() if isinstance(symbol, bytes) else symbol, bytes(code.code)


def _build_error(error: Exception, source: Path, name: str, arch: str) -> Exception:
    """Translate an error of NVRTC into ``Unsupported`` or ``BuildFailed``."""
    lines = [line.strip() for line in str(error).splitlines() if "error" in line and "NVRTC_ERROR" not in line]
    if any("gpu-architecture" in line for line in lines):
        return Unsupported(f"NVRTC {_version()} cannot compile for {arch}; install an nvidia-cuda-nvrtc that can")
    if any("open source file" in line for line in lines) and not _headers():
        return Unsupported("CUDA's headers are not found; pip install nvidia-cuda-runtime, or set CUDA_HOME")
    if header := next((line.rpartition("file ")[2] for line in lines if "cannot open source file" in line), ""):
        packages = "nvidia-curand" if "curand" in header else "nvidia-cuda-cccl nvidia-cuda-crt"
        return Unsupported(f"NVRTC finds no header {header}; pip install {packages}, or set CUDA_HOME to a toolkit")
    first = re.sub(r"^(?:.*/)?(?=[^/]+\(\d+\): )", "", lines[0]) if lines else str(error)
    if first.startswith("__nv_name_map"):  # the name that was requested, not a line of the user's
        advice = "name it as in its file, with the arguments of its template"
        advice = "several kernels have this name: give each its own" if "overloaded" in first else advice
        first = f"{first.partition('error: ')[2]}; {advice}"
    return BuildFailed(f"NVRTC: {name} for {arch}: {first}\n{error}")


def _version() -> str:
    """Return the version of NVRTC. Raises Unsupported if it or cuda.core is missing."""
    try:
        from cuda.bindings import nvrtc
        from cuda.core import ObjectCode, Program, launch  # noqa: F401  # cuda.core before 1.0 may lack them here
    except ImportError as error:
        raise Unsupported(
            f"CUDA C++ needs the package cuda-core, 1.0 or newer: {HELP}; or use build=extension"
        ) from error
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # its class differs between versions of cuda.bindings
        raise Unsupported(f"the library NVRTC is not found: {HELP}; or use build=extension") from error
    return f"{major}.{minor}"


def _headers() -> list[Path]:
    """Return the folders with CUDA's headers: NVIDIA's wheels, toolkits, Triton's wheel; CCCL's below each.

    A header is taken from the first that has it: a wheel may lack those that mma.h or cooperative_groups.h include.
    """
    wheels = [Path(entry, "nvidia") for entry in sys.path if entry]
    places = [place for wheel in wheels for place in (wheel / "cu13/include", wheel / "cuda_runtime/include")]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places += [Path(home, "include") for home in homes if home]
    places += [Path(entry, "triton/backends/nvidia/include") for entry in sys.path if entry]
    places = [place for place in dict.fromkeys(places) if (place / HEADER).is_file()]
    return [folder for place in places for folder in (place, place / "cccl") if folder.is_dir()]


class _Kernel(Kernel):
    """A kernel from a cubin, launched through the driver."""

    def __init__(self, kernel: Any, device: int, symbol: str) -> None:
        from cuda.core import Device

        super().__init__(device, symbol)
        self._kernel = kernel
        self._context = Device(device)

    def _enter_thread(self) -> None:
        self._context.set_current()  # torch may not have made the context current in this thread yet

    def _allow_shared(self, shared: int) -> None:
        from cuda.bindings import driver

        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if not self._set(most, shared):
            raise Unsupported(f"this GPU does not give a block {shared} bytes of shared memory")

    def _allow_clusters(self) -> None:
        from cuda.bindings import driver

        if not self._set(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1):
            raise Unsupported("this GPU has no clusters of more than 8 blocks")

    def _set(self, attribute: Any, value: int) -> bool:
        from cuda.bindings import driver

        (status,) = driver.cuKernelSetAttribute(attribute, value, self._kernel.handle, driver.CUdevice(self.device))
        return bool(status == driver.CUresult.CUDA_SUCCESS)

    def _runs_clusters(self, cluster: int, threads: int) -> bool:
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = cluster, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        # The driver accepts a CUkernel as a CUfunction here, but the binding checks the type.
        status, clusters = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(int(self._kernel.handle)), config)
        return bool(status == driver.CUresult.CUDA_SUCCESS and clusters > 0)

    def _launch(
        self, grid: tuple[int, int, int], threads: Grid, shared: int, cooperative: bool, arguments: tuple[Any, ...]
    ) -> None:
        from cuda.core import LaunchConfig, Stream, launch

        stream = Stream.from_handle(torch._C._cuda_getCurrentRawStream(self.device))
        config = LaunchConfig(grid=grid, block=threads, shmem_size=shared, is_cooperative=cooperative)
        launch(stream, config, self._kernel, *arguments)

    def _again(
        self,
        grid: tuple[int, int, int],
        threads: Grid,
        shared: int,
        cooperative: bool,
        arguments: tuple[Argument, ...],
        place: Callable[[Tensor], Place],
    ) -> Again:
        if cooperative:
            return super()._again(grid, threads, shared, cooperative, arguments, place)
        words, pointers = divided(arguments, place)
        # The driver takes the addresses of the arguments. It copies them before it returns.
        cells = [ctypes.c_uint64(word or 0) if isinstance(word, int | None) else word for word in words]
        parameters = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        sizes = (*grid, *((threads, 1, 1) if isinstance(threads, int) else threads), shared)
        launch, handle, lock = _launcher(), int(self._kernel.handle), threading.Lock()

        def again(addresses: list[int], stream: int) -> None:
            self._enter()
            with lock:
                for at, number, offset in pointers:
                    cells[at].value = addresses[number] + offset
                failed = launch(handle, *sizes, stream, parameters, None)
            if failed:  # the same with the error's words
                self(grid, threads, *cells, shared=shared)

        return again


@cache
def _launcher() -> Callable[..., int]:
    """Return the driver's function that launches a kernel."""
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    pointer = ctypes.c_void_p
    launch.argtypes = [pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer]
    launch.restype = ctypes.c_int
    return launch
