"""NVIDIA's profilers, and whether this user may have what they read."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from runner.device import tools
from runner.device.doctor import Finding
from runner.device.processes import output

PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
SYS_ADMIN = 21  # bit of the capability that the driver asks for, which root in a container need not have
MOST_PARANOID = 2  # at which processes of one's own may still be sampled


def look() -> list[Finding]:
    """The tools, and the permissions."""
    return [
        _tool("nsys", "Nsight Systems"),
        _tool("ncu", "Nsight Compute"),
        *_counters(),
        *_sampling(),
    ]


def _tool(name: str, title: str) -> Finding:
    path = tools.find(name)
    if path is None:
        return Finding(
            name, "not found", "missing", f"install {title} (a package of the CUDA toolkit's), or put it on PATH"
        )
    release = re.search(r"[Vv]ersion ([\w.]+)", output([path, "--version"]) or "")
    on_path = "" if shutil.which(name) else f" in {path}, which is not on PATH"
    return Finding(name, (release[1] if release else "does not say its version") + on_path)


def _counters() -> list[Finding]:
    """Hardware counters, which the driver may keep for root."""
    try:
        only_root = re.search(r"RmProfilingAdminOnly:\s*1", PARAMETERS.read_text(encoding="utf-8")) is not None
    except OSError:  # no driver here
        return []
    if not only_root or _administers():
        return [Finding("GPU counters", "may be read")]
    advice = (
        "run as root, or give a container --cap-add SYS_ADMIN, or load the driver with "
        "NVreg_RestrictProfilingToAdminUsers=0: else ncu says ERR_NVGPUCTRPERM"
    )
    return [Finding("GPU counters", "for root only", "missing", advice)]


def _administers() -> bool:
    told = re.search(r"^CapEff:\s*([0-9a-f]+)$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    return os.geteuid() == 0 if told is None else bool(int(told[1], 16) >> SYS_ADMIN & 1)


def _sampling() -> list[Finding]:
    try:
        paranoid = int(PARANOID.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if paranoid <= MOST_PARANOID or os.geteuid() == 0:
        return [Finding("CPU sampling", f"allowed (perf_event_paranoid {paranoid})")]
    advice = f"sysctl kernel.perf_event_paranoid={MOST_PARANOID} (as root); only nsys's CPU samples need it"
    return [Finding("CPU sampling", f"not allowed (perf_event_paranoid {paranoid})", "note", advice)]
