"""The GPU or CPU and its software; and the user's cache folder of what was found out about them.

A record in the cache is valid as long as the facts in its file name stay the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

from runner import __version__
from runner.device.processes import cores

CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu11")  # packages, by the version of CUDA
GPU_PROPERTIES = {  # name in torch → name in environment.json
    "total_memory": "memory_bytes",
    "multi_processor_count": "multiprocessors",
    "L2_cache_size": "l2_bytes",
    "shared_memory_per_multiprocessor": "shared_memory_per_multiprocessor_bytes",
    "regs_per_multiprocessor": "registers_per_multiprocessor",
    "max_threads_per_multi_processor": "threads_per_multiprocessor",
    "warp_size": "threads_per_warp",
}
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
FORMAT = 3  # of a certificate, and of the checks behind it; another number makes older certificates invalid


def identity() -> dict[str, str]:
    """Identify the current GPU and its software; "" for an unknown fact. Raises RuntimeError without a GPU.

    ``uuid`` is that of the MIG instance if the GPU is divided. Power limits and locked clocks are not included.
    """
    import torch

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
    own = identity() if torch.cuda.is_available() else cpu_identity()
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts["gpu"] = {
            "name": own["gpu"],
            "uuid": own["uuid"],
            "compute_capability": f"{properties.major}.{properties.minor}",
            "driver": own["driver"] or None,
            **{ours: getattr(properties, theirs, None) for theirs, ours in GPU_PROPERTIES.items()},
            **_clocks_and_bus(own["uuid"]),
        }
    return {**facts, "certificate": summary(own)}


def device_columns(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns ``DEVICE`` of a row from what ``describe`` said in its worker, without those unknown."""
    gpu = worker.get("gpu")
    if isinstance(gpu, Mapping):
        clock_mhz, bits = gpu.get("max_memory_clock_mhz"), gpu.get("memory_bus_bits")
        found = {
            "compute_capability": gpu.get("compute_capability"),
            "sms": gpu.get("multiprocessors"),
            "max_sm_clock_mhz": gpu.get("max_sm_clock_mhz"),
            "shared_per_sm_bytes": gpu.get("shared_memory_per_multiprocessor_bytes"),
            "registers_per_sm": gpu.get("registers_per_multiprocessor"),
            "l2_bytes": gpu.get("l2_bytes"),
            "device_memory_bytes": gpu.get("memory_bytes"),
            "max_memory_clock_mhz": clock_mhz,
            "memory_bus_bits": bits,
            "memory_bus_gbps": 2 * clock_mhz * bits / 8 / 1e3 if clock_mhz and bits else None,  # double data rate
        }
    else:
        found = {
            "l2_bytes": worker.get("cpu_l2_bytes"),
            "l3_bytes": worker.get("cpu_l3_bytes"),
            "device_memory_bytes": worker.get("cpu_memory_bytes"),
            "cores": worker.get("cpu_cores"),
        }
    return {name: value for name, value in found.items() if value is not None}


def _caches_and_memory() -> dict[str, int]:
    """Return the caches of the first core and the machine's memory, as far as the system tells them."""
    found = {}
    for cache_ in CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            level, kind, size = ((cache_ / name).read_text("ascii").strip() for name in ("level", "type", "size"))
            if level in "23" and kind != "Instruction":
                found[f"cpu_l{level}_bytes"] = int(size.removesuffix("K")) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        found["cpu_memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return found


def _clocks_and_bus(uuid: str) -> dict[str, int]:
    """Return the highest clocks and the memory bus of the GPU ``uuid`` by NVML; nothing if it does not tell them."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return {
            "max_sm_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            "memory_bus_bits": nvml.nvmlDeviceGetMemoryBusWidth(gpu),
        }
    except Exception:  # no pynvml, one that does not fit the driver, or a part of a GPU
        return {}


def cpu_model() -> str:
    """Return the CPU's name in Linux; elsewhere Python's, which may be "" or only the architecture."""
    with contextlib.suppress(OSError):
        if model := re.search(r"^model name\s*: *(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE):
            return model[1].strip()
    return platform.processor()


def driver() -> str:
    """Return the version of the NVIDIA driver, from its own file or else from NVML; "" if unknown."""
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no driver, or one that pynvml does not understand
        return ""


def _package(name: str) -> str:
    """Return the version of an installed package; "" if there is none, as where torch brings the library itself."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def certify(facts: Mapping[str, str], device: str, findings: Sequence[Mapping[str, Any]]) -> Path | None:
    """Write ``findings``, each with ``name`` and ``passed``, as the certificate of ``facts``, in place of an older one.

    Returns:
        The file, or None if it cannot be written.

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


def summary(facts: Mapping[str, str]) -> dict[str, Any] | None:
    """Return ``taken``, ``passed``, ``of`` and the names of checks that ``failed``; None without a certificate.

    Another version of the runner measures differently and needs another certificate.
    """
    record = read_record(_certificate_file(facts))
    if record is None:
        return None
    failed = [finding["name"] for finding in record["findings"] if not finding["passed"]]
    return {name: record[name] for name in ("taken", "passed", "of")} | {"failed": failed}


@cache
def separate_pct(device: str) -> float | None:
    """Return the column ``separate_pct`` of cases on ``device``, "cpu" or "cuda"; None without a certificate."""
    found = (finding.get("separate_pct") for finding in certified(device))
    return next((float(percent) for percent in found if percent is not None), None)


def certified(device: str) -> Sequence[Mapping[str, Any]]:
    """Return the findings in the certificate of ``device``, "cpu" or "cuda"; none without one."""
    record = read_record(_certificate_file(identity() if device == "cuda" else cpu_identity()))
    return list((record or {}).get("findings", ()))


def _certificate_file(facts: Mapping[str, str]) -> Path:
    return cache_file("certificate", {**facts, "runner_version": __version__}, FORMAT)


def cache_folder(kind: str) -> Path:
    """Return ``$XDG_CACHE_HOME/kernel-runner/<kind>``, by default under ``~/.cache``. It need not exist."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the XDG Base Directory Specification ignores relative ones
        return Path(named, "kernel-runner", kind)
    try:
        return Path.home() / ".cache" / "kernel-runner" / kind
    except RuntimeError:  # a user without a home, in a container: nothing is kept
        return Path(os.devnull, kind)


def cache_file(kind: str, facts: Mapping[str, str], version: int) -> Path:
    """Return the file for ``facts``, written in format ``version``: ``<uuid>-<8 hex digits>.json``."""
    text = json.dumps({"version": version, **facts}, sort_keys=True, separators=(",", ":"))
    return cache_folder(kind) / f"{facts.get('uuid') or 'unknown'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record in ``path``; None if there is none, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if isinstance(record, dict) else None
    return None


def write_record(path: Path, record: Mapping[str, Any]) -> bool:
    """Write ``record`` to ``path`` whole or not at all; return whether it could be written.

    Raises TypeError if ``record`` is not JSON-serializable.
    """
    text = json.dumps(record, indent=2)
    part = path.with_name(f".{path.stem}-{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        return False
    return True
