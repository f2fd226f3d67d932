"""CUDA C++ sources → kernels that can be launched, by either of two builders, both with a cache on disk.

    axpy = kernel(source(__file__, "default"), "axpy<float>", "nvrtc", x.device)  # kernels/axpy/axpy.cu
    axpy(blocks, 256, x.data_ptr(), y.data_ptr(), x.numel())

A kernel is named as C++ names it, template arguments and all, and built when it is first asked for: one name, one
build.
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
from .unsupported import Unsupported

__all__ = [
    "TYPES",
    "Build",
    "BuildFailed",
    "Kernel",
    "builds",
    "in_sixteens",
    "kernel",
    "require_type",
    "source",
    "with_rows",
]

TYPES = {  # as numbers.cuh names them
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}

BUILDERS = {"nvrtc": cuda_nvrtc.build, "extension": cuda_extension.build}


@dataclass(frozen=True)
class Build:
    """One kernel that this process has built, or loaded from the disk."""

    kernel: str
    builder: str
    seconds: float
    cached: bool  # it was found on disk
    source: Path
    arch: str
    built: Kernel


builds: list[Build] = []  # in their order


def require_type(op: str, x: Tensor, advice: str) -> None:
    """Raises Unsupported, with ``advice`` on what to do about it, if ``x`` is of none of ``TYPES``."""
    if x.dtype not in TYPES:
        raise Unsupported(f"{op} in CUDA C++ is of {', '.join(map(str, TYPES))}; {advice} {x.dtype}")


@cache
def source(implementation: str, variant: str) -> Path:
    """The ``.cu`` of ``variant`` beside ``implementation``, which is ``__file__`` of ``kernels/<op>/cuda.py``.

    Raises Unsupported if there is none.
    """
    folder = Path(implementation).parent
    have = cuda_sources.variants(folder)
    if variant not in have:
        raise Unsupported(f"kernels/{folder.name} has no variant {variant} in CUDA C++; it has {', '.join(have)}")
    return have[variant]


@cache
def kernel(source: Path, name: str, builder: str, device: torch.device) -> Kernel:
    """The kernel ``name`` of ``source`` for ``device``; built once, then kept in this process and on disk.

    Raises:
        Unsupported: ``device`` is no NVIDIA GPU, or something to build with is missing; the message says what helps.
        BuildFailed: the source does not compile.

    """
    if device.type != "cuda" or torch.version.hip:
        raise Unsupported("CUDA C++ runs on NVIDIA GPUs only; move the tensors to one, or take another implementation")
    started = time.perf_counter()
    index = torch.cuda.current_device() if device.index is None else device.index
    target = arch(device)
    built, cached = BUILDERS[builder](source, name, target, index)
    builds.append(Build(name, builder, time.perf_counter() - started, cached, source, target, built))
    return built


def with_rows(x: Tensor) -> Tensor:
    """``x`` [rows, cols] itself, if its rows lie in one piece each, however far apart; else a contiguous copy."""
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()


def in_sixteens(*matrices: Tensor) -> bool:
    """Whether all rows begin at multiples of sixteen bytes, and are multiples of them long."""
    return not any(
        x.data_ptr() % 16 or x.stride(0) * x.element_size() % 16 or x.shape[1] * x.element_size() % 16 for x in matrices
    )


def arch(device: torch.device) -> str:
    """What to compile for, so that ``device`` has all its instructions: "sm_90a" has wgmma, "sm_90" does not."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
