"""The GPUs: which there are, who uses them, and settings that spoil timings."""

from __future__ import annotations

import os
from pathlib import Path

from runner.device import gpus
from runner.device.doctor import Finding
from runner.device.processes import output

FIELDS = ("uuid", "persistence_mode", "compute_mode", "power.limit", "power.default_limit", "clocks.max.sm")
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108  where its control daemon listens, unless told otherwise


def look() -> list[Finding]:
    """A finding for each GPU, and one for each thing about it that matters."""
    found, why = gpus.look()
    if not found:
        advice = "CPU cases can be run; for GPUs see that nvidia-smi lists them here"
        return [Finding("GPU", why or "none", "note", advice)]
    settings = _settings()
    return [one for gpu in found for one in _of(gpu, settings.get(gpu.parent_uuid or gpu.uuid, {}))] + _mps()


def _of(gpu: gpus.Gpu, settings: dict[str, str]) -> list[Finding]:
    gib = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory not told"
    clock = f", up to {settings['clocks.max.sm']} MHz" if settings.get("clocks.max.sm", "").isdigit() else ""
    name = f"GPU {gpu.index}"
    said = [Finding(name, f"{gpu.name}, {gib}{clock}, {gpu.uuid}")]
    if others := gpus.busy(gpu):
        said.append(Finding(name, others, "note", "end what uses it, or choose another one with launcher.gpus"))
    if settings.get("persistence_mode") == "Disabled":
        advice = f"nvidia-smi -i {gpu.index} -pm 1 (as root), or every start of a worker waits for the driver"
        said.append(Finding(name, "persistence mode is off", "note", advice))
    if settings.get("compute_mode", "Default") not in ("Default", "[N/A]"):
        advice = f"nvidia-smi -i {gpu.index} -c 0 (as root): else no worker can stand ready, and none compile ahead"
        said.append(Finding(name, f"compute mode {settings['compute_mode']}", "note", advice))
    limit, default = (_number(settings.get(key, "")) for key in ("power.limit", "power.default_limit"))
    if limit and default and limit < default:
        advice = f"nvidia-smi -i {gpu.index} -pl {default:.0f} (as root) for its own limit; below it, times are longer"
        said.append(Finding(name, f"power limit {limit:.0f} of {default:.0f} W", "note", advice))
    return said


def _mps() -> list[Finding]:
    if not Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPES)).exists():
        return []
    advice = "echo quit | nvidia-cuda-mps-control: under it one fatal fault ends every process on the GPU"
    return [Finding("MPS", "its control daemon has a pipe here", "note", advice)]


def _settings() -> dict[str, dict[str, str]]:
    """By UUID, what nvidia-smi says of each GPU."""
    lines = output(["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]) or ""
    rows = [[cell.strip() for cell in line.split(",")] for line in lines.splitlines()]
    return {row[0]: dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
