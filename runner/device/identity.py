"""Facts about the GPU or CPU and its software, and the certificate of ``verify`` for them."""

import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..records.columns import DEVICE
from .cache import cache_file, read_record, write_record
from .files import text_in
from .processes import cores

CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu11")  # packages, by the version of CUDA
GPU_PROPERTIES = {  # name in torch → name in environment.json
    "total_memory": "device_memory_bytes",
    "multi_processor_count": "sms",
    "L2_cache_size": "l2_bytes",
    "shared_memory_per_multiprocessor": "shared_per_sm_bytes",
    "regs_per_multiprocessor": "registers_per_sm",
    "max_threads_per_multi_processor": "threads_per_sm",
    "warp_size": "threads_per_warp",
}
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
FORMAT = 3  # format of a certificate and its checks; a new number makes older certificates invalid


def identity() -> dict[str, str]:
    """Identify the current GPU and its software; "" for an unknown fact. Raises RuntimeError without a GPU.

    ``uuid`` is the UUID of the MIG instance if the GPU is divided. Power limits and locked clocks are not included.
    """
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "uuid": str(getattr(properties, "uuid", "")),
        "gpu": properties.name,
        "driver": driver(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "cublas": next(filter(None, map(package_version, CUBLAS)), ""),
        "triton": package_version("triton"),
    }


def cpu_identity() -> dict[str, str]:
    """Identify the CPU and its software. ``uuid`` stands for the model, since CPUs have no unique number."""
    import torch

    model = cpu_model()
    return {
        "uuid": f"cpu-{hashlib.sha256(model.encode()).hexdigest()[:8]}",
        "cpu": model,
        "cores": str(cores()),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def describe() -> dict[str, Any]:
    """Return the facts of this machine for ``environment.json``, with the certificate of ``verify`` if it has one."""
    import torch

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cpu": cpu_model(),
        "cpu_cores": cores(),
        "cpu_threads": torch.get_num_threads(),
        **_caches_and_memory(),
        "gpu": None,
    }
    if not torch.cuda.is_available():
        device = cpu_identity()
    else:
        device, properties = identity(), torch.cuda.get_device_properties(torch.cuda.current_device())
        facts["gpu"] = {
            "name": device["gpu"],
            "uuid": device["uuid"],
            "compute_capability": f"{properties.major}.{properties.minor}",
            "driver": device["driver"] or None,
            **{column: getattr(properties, attribute, None) for attribute, column in GPU_PROPERTIES.items()},
            **_clocks_and_bus(device["uuid"]),
        }
    return {**facts, "certificate": certificate_summary(device)}


def device_columns(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known columns ``DEVICE`` of a row, from ``describe`` in its worker."""
    gpu = worker.get("gpu")
    if isinstance(gpu, Mapping):
        clock_mhz, bits = gpu.get("max_memory_clock_mhz"), gpu.get("memory_bus_bits")
        gbps = 2 * clock_mhz * bits / 8 / 1e3 if clock_mhz and bits else None  # double data rate
        columns = {**gpu, "memory_bus_gbps": gbps}
    else:
        columns = {name: worker.get(f"cpu_{name}") for name in ("l2_bytes", "l3_bytes", "cores")}
        columns["device_memory_bytes"] = worker.get("cpu_memory_bytes")
    return {name: columns[name] for name in DEVICE if columns.get(name) is not None}


def _caches_and_memory() -> dict[str, int]:
    """Return the caches of the first core and the machine's memory, as far as known."""
    sizes = {}
    for cache_ in CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            level, kind, size = ((cache_ / name).read_text("ascii").strip() for name in ("level", "type", "size"))
            if level in "23" and kind != "Instruction":
                sizes[f"cpu_l{level}_bytes"] = int(size.removesuffix("K")) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sizes["cpu_memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sizes


def _clocks_and_bus(uuid: str) -> dict[str, int]:
    """Return the highest clocks and the memory bus of the GPU ``uuid`` by NVML; {} if unknown."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return {
            "max_sm_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            "memory_bus_bits": nvml.nvmlDeviceGetMemoryBusWidth(gpu),
        }
    except Exception:  # pynvml is missing or does not fit the driver, or the GPU is a part (MIG)
        return {}


def cpu_model() -> str:
    """Return the CPU's name in Linux; elsewhere Python's name, which may be "" or the architecture."""
    model = re.search(r"^model name\s*: *(.+)$", text_in("/proc/cpuinfo"), re.MULTILINE)
    return model[1].strip() if model else platform.processor()


def driver() -> str:
    """Return the version of the NVIDIA driver, from its own file or from NVML; "" if unknown."""
    if version := text_in("/sys/module/nvidia/version").strip():
        return version
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # there is no driver, or pynvml does not understand it
        return ""


def package_version(name: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        package = metadata.distribution(name)  # its ``version`` parses the whole text, for 5 ms
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        return text.partition("\nVersion:")[2].partition("\n")[0].strip()
    return ""


def certify(facts: Mapping[str, str], device: str, findings: Sequence[Mapping[str, Any]]) -> Path | None:
    """Write ``findings``, each with ``name`` and ``passed``, as the certificate of ``facts``.

    Return the file, or None if it cannot be written.
    """
    path = _certificate_file(facts)
    record = {
        "identity": dict(facts),
        "taken": datetime.now().astimezone().isoformat(timespec="seconds"),
        "runner_version": __version__,
        "device": device,
        "findings": [dict(finding) for finding in findings],
        "passed": sum(bool(finding["passed"]) for finding in findings),
        "of": len(findings),
    }
    return path if write_record(path, record) else None


def certificate_summary(facts: Mapping[str, str]) -> dict[str, Any] | None:
    """Return ``taken``, ``passed``, ``of`` and the names of checks that ``failed``; None without a certificate.

    Another version of the runner measures differently and needs another certificate.
    """
    if (record := read_record(_certificate_file(facts))) is None:
        return None
    failed = [finding["name"] for finding in record["findings"] if not finding["passed"]]
    return {name: record[name] for name in ("taken", "passed", "of")} | {"failed": failed}


@cache
def separate_pct(device: str) -> float | None:
    """Return the column ``separate_pct`` of cases on ``device``, "cpu" or "cuda"; None without a certificate."""
    values = (finding.get("separate_pct") for finding in certified(device))
    return next((float(percent) for percent in values if percent is not None), None)


def certified(device: str) -> Sequence[Mapping[str, Any]]:
    """Return the findings in the certificate of ``device``, "cpu" or "cuda"; none without one."""
    record = read_record(_certificate_file(identity() if device == "cuda" else cpu_identity()))
    return list((record or {}).get("findings", ()))


def _certificate_file(facts: Mapping[str, str]) -> Path:
    return cache_file("certificate", {**facts, "runner_version": __version__}, FORMAT)
