"""Which GPU or CPU this is, and what runs it: what was found out here holds as long as none of it changes."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata

import torch

CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu11")  # its name as a package, by CUDA's version


def identity() -> dict[str, str]:
    """Of the current GPU and its software; "" where something is not known. Raises RuntimeError without a GPU.

    ``uuid`` is of the MIG instance, if the GPU is divided. A power limit or a locked clock is no part of it.
    """
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "uuid": str(getattr(properties, "uuid", "")),
        "gpu": properties.name,
        "driver": driver(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "cublas": next(filter(None, map(_package, CUBLAS)), ""),
        "triton": _package("triton"),
    }


def cpu_identity() -> dict[str, str]:
    """Of the CPU and its software. ``uuid`` is of the model: processors have no name of their own."""
    model = cpu_model()
    return {
        "uuid": f"cpu-{hashlib.sha256(model.encode()).hexdigest()[:8]}",
        "cpu": model,
        "cores": str(cpu_cores() or ""),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def cpu_model() -> str:
    """As Linux names it; elsewhere as Python does, which may be "" or only its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(models, platform.processor())
    except OSError:
        return platform.processor()


def cpu_cores() -> int | None:
    """CPUs that this process may run on; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def driver() -> str:
    """Version of the NVIDIA driver, from its own file where there is one, else from its library."""
    try:
        with open("/sys/module/nvidia/version", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        pass
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no such package, or a driver it does not understand: the fact is simply not known
        return ""


def _package(name: str) -> str:
    """Version of an installed package; "" if it is not there, or came with torch and not as a package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
