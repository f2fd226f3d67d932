"""Compile CUDA C++ sources into kernels, with one of two builders. Both keep their results on disk.

    axpy = kernel(source(__file__, "default"), "axpy<float>", "nvrtc", x.device)  # kernels/axpy/axpy.cu
    axpy(blocks, 256, x.data_ptr(), y.data_ptr(), x.numel())

The name of a kernel is its C++ name with its template arguments. A kernel is built when it is first requested.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from . import cuda_extension, cuda_nvrtc, cuda_sources
from .cuda_kernel import BuildFailed, Kernel
from .unsupported import CUDA_NEEDS_GPU, Unsupported

__all__ = [
    "TYPES",
    "Build",
    "BuildFailed",
    "Kernel",
    "builds",
    "kernel",
    "require_type",
    "rows_are_aligned",
    "source",
    "with_dense_rows",
]

TYPES = {  # dtypes, and their names in numbers.cuh
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}

BUILDERS = {"nvrtc": cuda_nvrtc.build, "extension": cuda_extension.build}


@dataclass(frozen=True)
class Build:
    """A kernel that this process has built, or loaded from disk."""

    kernel: str
    builder: str
    seconds: float
    cached: bool  # found on disk
    source: Path
    arch: str
    built: Kernel


builds: list[Build] = []  # all builds of this process, in order


def require_type(op: str, x: Tensor, advice: str) -> None:
    """Raise Unsupported if the dtype of ``x`` is not in ``TYPES``. ``advice`` and the dtype end the message."""
    if x.dtype not in TYPES:
        raise Unsupported(f"{op} in CUDA C++ takes {', '.join(map(str, TYPES))}; {advice} {x.dtype}")


@cache
def source(implementation: str, variant: str) -> Path:
    """Return the ``.cu`` file of ``variant`` beside ``implementation``, the ``__file__`` of ``kernels/<op>/cuda.py``.

    Raises Unsupported if there is no such variant.
    """
    folder = Path(implementation).parent
    variants = cuda_sources.variants(folder)
    if variant not in variants:
        raise Unsupported(f"kernels/{folder.name} has no variant {variant} in CUDA C++; it has {', '.join(variants)}")
    return variants[variant]


@cache
def kernel(source: Path, name: str, builder: str, device: torch.device) -> Kernel:
    """Return the kernel ``name`` of ``source`` for ``device``. It is built once, then kept in memory and on disk.

    Args:
        source: a ``.cu`` file.
        name: the C++ name with template arguments, such as ``"axpy<float>"``.
        builder: ``"nvrtc"``, or ``"extension"``: nvcc, through a torch extension.
        device: an NVIDIA GPU.

    Raises:
        Unsupported: ``device`` is not an NVIDIA GPU, or the builder lacks something. The message says what helps.
        BuildFailed: the source does not compile.

    """
    if device.type != "cuda" or torch.version.hip:
        raise Unsupported(CUDA_NEEDS_GPU)
    started = time.perf_counter()
    index = torch.cuda.current_device() if device.index is None else device.index
    target = arch(device)
    built, cached = BUILDERS[builder](source, name, target, index)
    builds.append(Build(name, builder, time.perf_counter() - started, cached, source, target, built))
    return built


def with_dense_rows(x: Tensor) -> Tensor:
    """Return ``x`` [rows, cols] if each row is contiguous, at any row stride; else a contiguous copy."""
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()


def rows_are_aligned(*matrices: Tensor) -> bool:
    """Return whether the address and the length of every row are multiples of 16 bytes."""
    return not any(
        x.data_ptr() % 16 or x.stride(0) * x.element_size() % 16 or x.shape[1] * x.element_size() % 16 for x in matrices
    )


def arch(device: torch.device) -> str:
    """Return the compile target with all instructions of ``device``: "sm_90a" has wgmma, "sm_90" has not."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
