"""What a worker runs on: libraries, CPU, GPU and its properties, driver. No secrets: nothing of the environment."""

from __future__ import annotations

from typing import Any

import torch

from runner.device import certificate
from runner.device.identity import cpu_cores, cpu_identity, cpu_model, driver, identity

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
        "cpu": cpu_model(),
        "cpu_cores": cpu_cores(),
        "cpu_threads": torch.get_num_threads(),
        "gpu": None,
    }
    if torch.cuda.is_available():
        facts["gpu"] = _gpu()
    facts["certificate"] = _certificate()
    return facts


def _certificate() -> dict[str, Any] | None:
    """What ``python -m runner verify`` last said of the GPU, or of the CPU if there is none; None if it was not asked.

    A driver or library that has changed since makes it another machine.
    """
    try:
        return certificate.summary(identity() if torch.cuda.is_available() else cpu_identity())
    except Exception:  # no run fails for want of a certificate
        return None


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    named = {ours: getattr(properties, theirs, None) for theirs, ours in GPU_PROPERTIES.items()}
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver() or None,
        **named,
    }
