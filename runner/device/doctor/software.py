"""Python, torch, Triton, and the compilers that kernels need."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

from runner.device.doctor import Finding
from runner.device.processes import output

ASK_TORCH = """
import json, torch
seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
print("TORCH", json.dumps([torch.__version__, torch.version.cuda, seen]))
"""
TORCH_LIMIT_S = 120.0
EXTRAS = {"ray": "ray", "submitit": "slurm"}  # package → the extra that installs it


def look() -> list[Finding]:
    """Everything that is installed by pip, and the compilers."""
    torch, cuda = _torch()
    return [Finding("Python", sys.version.split()[0]), torch, _triton(), _nvcc(cuda), _cxx(), *_extras()]


def _torch() -> tuple[Finding, str | None]:
    """torch, and the CUDA that it is built for. Asked in a process of its own, which a broken driver may end."""
    answer = re.search(r"^TORCH (.*)$", output([sys.executable, "-c", ASK_TORCH], TORCH_LIMIT_S) or "", re.MULTILINE)
    if not answer:
        return Finding(
            "torch", "it cannot be imported", "missing", f"{sys.executable} -c 'import torch' says why"
        ), None
    installed, cuda, seen = json.loads(answer[1])
    if cuda is None:
        advice = "for GPUs install a build of torch with CUDA, as its site says for this machine"
        return Finding("torch", f"{installed}, for the CPU only", "note", advice), None
    if not seen:
        return Finding("torch", f"{installed}, for CUDA {cuda}; it sees no GPU", "note", "see the GPUs"), cuda
    return Finding("torch", f"{installed}, for CUDA {cuda}; it sees {seen} GPU{'s' * (seen > 1)}"), cuda


def _triton() -> Finding:
    try:
        return Finding("Triton", version("triton"))
    except PackageNotFoundError:
        return Finding("Triton", "not installed", "missing", "pip install triton (Linux only); impl=triton needs it")


def _nvcc(cuda: str | None) -> Finding:
    release = re.search(r"release ([\d.]+)", output(["nvcc", "--version"]) or "")
    wanted = f"the CUDA toolkit {cuda.partition('.')[0]}" if cuda else "the CUDA toolkit"
    advice = f"install {wanted}, and put its bin on PATH: CUDA C++ kernels need it"
    if not release:
        return Finding("nvcc", "not found", "missing", advice)
    if cuda and release[1].partition(".")[0] != cuda.partition(".")[0]:
        return Finding("nvcc", f"{release[1]}, while torch is for CUDA {cuda}", "note", advice)
    return Finding("nvcc", release[1])


def _cxx() -> Finding:
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return Finding("C++ compiler", ((output([name, "--version"]) or name).splitlines() or [name])[0])
    advice = "install g++ (apt-get install g++): torch.compile on the CPU and Triton's launchers need it"
    return Finding("C++ compiler", "not found", "missing", advice)


def _extras() -> list[Finding]:
    found = []
    for package, extra in EXTRAS.items():
        try:
            found.append(Finding(package, version(package)))
        except PackageNotFoundError:
            advice = f"pip install -e '.[{extra}]' in the checkout, for launcher={extra}"
            found.append(Finding(package, "not installed", "note", advice))
    return found
