"""What a worker runs on: libraries, CPU, GPU and its properties, driver. No secrets: nothing of the environment."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

GPU_PROPERTIES = {  # torch's name → ours, with the unit
    "total_memory": "memory_bytes",
    "multi_processor_count": "multiprocessors",
    "L2_cache_size": "l2_bytes",
    "shared_memory_per_multiprocessor": "shared_memory_per_multiprocessor_bytes",
    "regs_per_multiprocessor": "registers_per_multiprocessor",
    "max_threads_per_multi_processor": "threads_per_multiprocessor",
    "warp_size": "threads_per_warp",
}


def describe() -> dict[str, Any]:
    """JSON-ready facts."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cpu": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
        "gpu": None,
    }
    if torch.cuda.is_available():
        facts["gpu"] = _gpu()
    return facts


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    named = {ours: getattr(properties, theirs, None) for theirs, ours in GPU_PROPERTIES.items()}
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        **named,
    }


def _driver() -> str | None:
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
        return None


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(models, platform.processor())
    except OSError:
        return platform.processor()
