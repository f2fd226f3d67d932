"""Compile CUDA C++ with nvcc into a torch extension, by ``torch.utils.cpp_extension.load_inline``.

The extension is a Python module in plain C. It avoids torch's headers, which load_inline would include, since a build
with them takes minutes instead of seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from . import cuda_cache, cuda_sources
from .cuda_kernel import BuildFailed, Grid, Kernel
from .unsupported import Unsupported

FLAGS = ["-O3", "-lineinfo"]
ARGUMENTS = 32  # the most that a kernel may have

GLUE = """
#include <Python.h>
#include <cuda_runtime.h>
#include "{source}"

static const void* const kernel = (const void*)({kernel});

static PyObject* none_or_raise(cudaError_t error) {{
    if (error == cudaSuccess) Py_RETURN_NONE;
    cudaGetLastError();  // clears it, or torch would report it as an error of its own
    return PyErr_Format(PyExc_RuntimeError, "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
}}

// launch(stream, grid x, grid y, grid z, threads, shared, cooperative, arguments ...)
static PyObject* launch(PyObject*, PyObject* const* words, Py_ssize_t count) {{
    long long values[7 + {arguments}];
    void* pointers[{arguments}];
    if (count < 7 || count > 7 + {arguments}) return PyErr_Format(PyExc_TypeError, "%zd arguments", count);
    for (Py_ssize_t i = 0; i < count; i++) {{
        values[i] = (long long)PyLong_AsUnsignedLongLongMask(words[i]);
        if (i >= 7) pointers[i - 7] = &values[i];
    }}
    if (PyErr_Occurred()) return NULL;
    dim3 grid((unsigned)values[1], (unsigned)values[2], (unsigned)values[3]), block((unsigned)values[4]);
    cudaStream_t stream = (cudaStream_t)values[0];
    return none_or_raise(values[6]
        ? cudaLaunchCooperativeKernel(kernel, grid, block, pointers, (size_t)values[5], stream)
        : cudaLaunchKernel(kernel, grid, block, pointers, (size_t)values[5], stream));
}}

static PyObject* allow_shared(PyObject*, PyObject* bytes) {{
    int most = (int)PyLong_AsLong(bytes);
    return none_or_raise(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
}}

static PyObject* allow_clusters(PyObject*, PyObject*) {{
    return none_or_raise(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}}

// active_clusters(blocks of a cluster, threads)
static PyObject* active_clusters(PyObject*, PyObject* const* words, Py_ssize_t) {{
    cudaLaunchConfig_t config = {{}};
    config.gridDim = dim3((unsigned)PyLong_AsLong(words[0]));
    config.blockDim = dim3((unsigned)PyLong_AsLong(words[1]));
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) cudaGetLastError();
    return PyLong_FromLong(clusters);
}}

static PyMethodDef methods[] = {{
    {{"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, NULL}},
    {{"allow_shared", allow_shared, METH_O, NULL}},
    {{"allow_clusters", allow_clusters, METH_NOARGS, NULL}},
    {{"active_clusters", (PyCFunction)(void (*)(void))active_clusters, METH_FASTCALL, NULL}},
    {{NULL, NULL, 0, NULL}}}};
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{module}", NULL, -1, methods}};

PyMODINIT_FUNC PyInit_{module}(void) {{
    return PyModule_Create(&definition);
}}
"""


def build(source: Path, name: str, arch: str, device: int) -> tuple[Kernel, bool]:
    """Return the kernel ``name`` of ``source``, and whether it was found on disk. See ``kernels.cuda_build.kernel``."""
    if why := missing():
        raise Unsupported(why)
    from torch.utils import cpp_extension

    local = cuda_sources.closure(source, ())  # without CUDA's own headers: nvcc's version stands for them
    compilers = [_version(f"{cpp_extension.CUDA_HOME}/bin/nvcc"), _version(cpp_extension.get_cxx_compiler())]
    versions = [torch.__version__, torch.version.cuda, sys.version, compilers]
    key = cuda_cache.key("extension", versions, source.name, name, arch, FLAGS, GLUE, sources=local)
    module_name = f"{re.sub('[^a-zA-Z0-9]', '_', source.stem)}_{key}"
    kept = _kept(module_name)
    module = kept or _build(source, name, arch, module_name)
    return _Kernel(module, device), kept is not None


def missing() -> str:
    """Return a sentence that names what a build lacks on this machine; empty if nothing."""
    from torch.utils import cpp_extension

    lacks = []
    home = cpp_extension.CUDA_HOME
    if home is None or not Path(home, "bin", "nvcc").is_file():
        lacks.append("nvcc (install the CUDA toolkit, and set CUDA_HOME to it)")
    elif not Path(home, "include", "cuda_runtime.h").is_file():
        lacks.append(f"cuda_runtime.h (CUDA_HOME is {home}, an incomplete toolkit; set it to a complete one)")
    if shutil.which(cpp_extension.get_cxx_compiler()) is None:
        lacks.append("a C++ compiler (install g++)")
    if shutil.which("ninja", path=_path()) is None:
        lacks.append("ninja (pip install ninja)")
    if not lacks:
        return ""
    return f"build=extension needs {' and '.join(lacks)}; build=nvrtc needs none of these"


def _path() -> str:
    """Return PATH and the folder of this Python's scripts, where ninja may be if the environment is not activated."""
    return os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _kept(module: str) -> ModuleType | None:
    """Load the extension ``module`` from the cache; None if it is missing or damaged."""
    place = cuda_cache.folder()
    library = place / module / f"{module}.so" if place else None
    try:
        if library is None or _digest(library) != library.with_suffix(".sha256").read_text(encoding="ascii"):
            return None
    except OSError:
        return None
    return _load(module, library)


def _build(source: Path, name: str, arch: str, module: str) -> ModuleType:
    from torch.utils import cpp_extension

    # Each build has its own folder, since load_inline's lock in a shared one stays after a process is killed.
    folder = cuda_cache.folder()
    with tempfile.TemporaryDirectory(prefix=".", dir=folder, ignore_cleanup_errors=True) as scratch, _ninja_on_path():
        text = GLUE.format(source=source.resolve(), kernel=name, module=module, arguments=ARGUMENTS)
        number = arch.removeprefix("sm_")
        quick = {"no_implicit_headers": True} if "no_implicit_headers" in _parameters() else {}  # from torch 2.7 on
        try:
            built = cpp_extension.load_inline(
                module,
                cpp_sources=[""],
                cuda_sources=[text],
                extra_cuda_cflags=[*FLAGS, f"-gencode=arch=compute_{number},code=sm_{number}"],
                build_directory=scratch,
                with_cuda=True,
                **quick,
            )
        except (RuntimeError, subprocess.CalledProcessError) as error:
            lines = [line for line in str(error).splitlines() if "error" in line]
            first = lines[min(1, len(lines) - 1)] if lines else str(error)
            raise BuildFailed(f"nvcc: {name} for {arch}: {first.strip()}\n{error}") from error
        if folder is not None:
            _keep(Path(scratch), folder, module)
    assert isinstance(built, ModuleType)
    return built


def _keep(scratch: Path, folder: Path, module: str) -> None:
    """Copy the built library into the cache, atomically. Errors of the disk are ignored."""
    library = scratch / f"{module}.so"
    with contextlib.suppress(OSError):
        whole = Path(tempfile.mkdtemp(prefix=".", dir=folder))
        shutil.copy(library, whole)
        (whole / f"{module}.sha256").write_text(_digest(library), encoding="ascii")
        shutil.rmtree(folder / module, ignore_errors=True)  # a damaged one, or one that was written meanwhile
        os.replace(whole, folder / module)


def _load(module: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module, library)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _parameters() -> set[str]:
    from torch.utils import cpp_extension

    return set(inspect.signature(cpp_extension.load_inline).parameters)


@contextlib.contextmanager
def _ninja_on_path() -> Iterator[None]:
    before = os.environ.get("PATH")
    os.environ["PATH"] = _path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


class _Kernel(Kernel):
    """A kernel from an extension, launched through CUDA's runtime."""

    def __init__(self, module: ModuleType, device: int) -> None:
        super().__init__(device)
        self._module = module

    def _enter_thread(self) -> None:
        """Do nothing: the runtime makes the device's context current by itself."""

    def _allow_shared(self, shared: int) -> None:
        try:
            self._module.allow_shared(shared)
        except RuntimeError as error:
            raise Unsupported(f"this GPU does not give a block {shared} bytes of shared memory") from error

    def _allow_clusters(self) -> None:
        try:
            self._module.allow_clusters()
        except RuntimeError as error:
            raise Unsupported("this GPU has no clusters of more than 8 blocks") from error

    def _runs_clusters(self, cluster: int, threads: int) -> bool:
        return bool(self._module.active_clusters(cluster, threads) > 0)

    def _launch(
        self, grid: tuple[int, int, int], threads: Grid, shared: int, cooperative: bool, arguments: tuple[int, ...]
    ) -> None:
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        self._module.launch(stream, *grid, threads, shared, cooperative, *arguments)
