"""Which GPU or CPU this is, and what runs it: what was found out here holds as long as none of it changes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from runner import __version__

CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu11")  # its name as a package, by CUDA's version


def identity() -> dict[str, str]:
    """Identify the current GPU and its software; "" for what is not known. Raises RuntimeError without a GPU.

    ``uuid`` is of the MIG instance, if the GPU is divided. A power limit or a locked clock is no part of it.
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
    """Identify the CPU and its software. ``uuid`` names the model: processors have no number of their own."""
    import torch

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
            return next(models, "") or platform.processor()  # which runs a program
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
    import torch

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
    import torch

    try:
        return summary(identity() if torch.cuda.is_available() else cpu_identity())
    except Exception:  # no run fails for want of a certificate
        return None


def _gpu() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    named = {ours: getattr(properties, theirs, None) for theirs, ours in GPU_PROPERTIES.items()}
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver() or None,
        **named,
    }


FORMAT = 1  # of the file, and of what the checks ask: another number makes older certificates void


def certify(facts: Mapping[str, str], device: str, findings: Sequence[Mapping[str, Any]]) -> Path | None:
    """Keep ``findings``, each with a ``name`` and whether it ``passed``, as the certificate of ``facts``.

    Returns:
        The file, in which an older one is replaced; None if the disk will not have it.

    """
    path = cache_file("certificate", facts, FORMAT)
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
    """``taken``, ``passed``, ``of`` and the names of what ``failed``; None if nothing is certified for ``facts``.

    A certificate is this version's: another one measures in its own way.
    """
    record = read_record(cache_file("certificate", facts, FORMAT))
    if record is None or record.get("identity") != dict(facts) or record.get("runner_version") != __version__:
        return None
    try:
        return {
            "taken": str(record["taken"]),
            "passed": int(record["passed"]),
            "of": int(record["of"]),
            "failed": [str(finding["name"]) for finding in record["findings"] if not finding["passed"]],
        }
    except (KeyError, TypeError, ValueError):  # it has been edited
        return None


def cache_folder(kind: str) -> Path:
    """``$XDG_CACHE_HOME/kernel-runner/<kind>``, by default under ``~/.cache``. ``write_record`` makes it if need be."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # a relative one is to be ignored (XDG Base Directory Specification)
        return Path(named, "kernel-runner", kind)
    try:
        return Path.home() / ".cache" / "kernel-runner" / kind
    except RuntimeError:  # a user without a name in a container: then nothing is kept
        return Path(os.devnull, kind)


def cache_file(kind: str, facts: Mapping[str, str], version: int) -> Path:
    """The file of what holds for ``facts`` and is written in format ``version``: ``<uuid>-<8 hex digits>.json``."""
    text = json.dumps({"version": version, **facts}, sort_keys=True, separators=(",", ":"))
    return cache_folder(kind) / f"{facts.get('uuid') or 'unknown'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def read_record(path: Path) -> dict[str, Any] | None:
    """The record in ``path``; None if there is none, or what is there is no record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: Mapping[str, Any]) -> bool:
    """Put ``record`` in ``path``, whole or not at all. False if the disk will not have it.

    Raises TypeError if ``record`` cannot be written as JSON.
    """
    text = json.dumps(record, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    except OSError:
        return False
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        _remove(name)
        return False
    return True


def _remove(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        return
