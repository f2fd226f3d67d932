"""The checks of ``python -m runner doctor``: what this machine has, and what to type for each thing that it lacks."""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from runner.device import gpus, identity, lock, processes, tools
from runner.device.processes import output
from runner.experiment.schema import BadInput

State = Literal["ok", "note", "missing"]  # note: it works, but not as well as it could


@dataclass(frozen=True)
class Finding:
    """One thing, what was found, and what to do unless it is ok."""

    what: str
    found: str
    state: State = "ok"
    advice: str = ""


def examine() -> Iterator[tuple[str, list[Finding]]]:
    """Yield each group of checks with its findings."""
    groups = {
        "gpus": look_at_gpus,
        "profilers": look_at_profilers,
        "software": look_at_software,
        "surroundings": look_at_surroundings,
    }
    for name, look in groups.items():
        try:
            findings = look()
        except Exception as error:  # a group that fails must not hide the others
            findings = [Finding(name, f"{type(error).__name__}: {error}", "note", "please report this")]
        yield name, findings


FIELDS = ("uuid", "persistence_mode", "compute_mode", "power.limit", "power.default_limit", "clocks.max.sm")
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108  the default folder of MPS's control daemon


def look_at_gpus() -> list[Finding]:
    """Return a finding for each GPU, and one for each setting that makes its timings worse."""
    found, why = gpus.look()
    if not found:
        return [Finding("GPU", why, "note", "CPU cases can be run; for GPUs see that nvidia-smi lists them here")]
    settings = _settings()
    findings = [one for gpu in found for one in _gpu(gpu, settings.get(gpu.parent_uuid or gpu.uuid, {}))]
    if Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPES)).exists():
        advice = "echo quit | nvidia-cuda-mps-control: under it one fatal fault ends every process on the GPU"
        findings.append(Finding("MPS", "its control daemon has a pipe here", "note", advice))
    return findings


def _gpu(gpu: gpus.Gpu, settings: dict[str, str]) -> list[Finding]:
    gib = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory unknown"
    clock = f", up to {settings['clocks.max.sm']} MHz" if settings.get("clocks.max.sm", "").isdigit() else ""
    name, administer = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index}"
    findings = [Finding(name, f"{gpu.name}, {gib}{clock}, {gpu.uuid}")]
    if others := gpus.busy(gpu):
        findings.append(Finding(name, others, "note", "end what uses it, or choose another one with launcher.gpus"))
    if settings.get("persistence_mode") == "Disabled":
        advice = f"{administer} -pm 1 (as root), or every start of a worker waits for the driver"
        findings.append(Finding(name, "persistence mode is off", "note", advice))
    if (mode := settings.get("compute_mode", "Default")) not in ("Default", "[N/A]"):
        advice = f"{administer} -c 0 (as root): else no worker can stand ready, and none compile ahead"
        findings.append(Finding(name, f"compute mode {mode}", "note", advice))
    try:
        limit, default = (float(settings[key]) for key in ("power.limit", "power.default_limit"))
    except (KeyError, ValueError):  # [N/A]
        return findings
    if limit < default:
        advice = f"{administer} -pl {default:.0f} (as root) for its own limit; below it, times are longer"
        findings.append(Finding(name, f"power limit {limit:.0f} of {default:.0f} W", "note", advice))
    return findings


def _settings() -> dict[str, dict[str, str]]:
    """Return what nvidia-smi reports, by the UUID of the GPU."""
    lines = output(["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]) or ""
    rows = [[cell.strip() for cell in line.split(",")] for line in lines.splitlines()]
    return {row[0]: dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)}


PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
SYS_ADMIN = 21  # the bit of the capability that the driver asks for; root in a container need not have it


def look_at_profilers() -> list[Finding]:
    """Return the profilers, and whether the driver lets them read hardware counters."""
    return [_profiler("nsys", "Nsight Systems"), _profiler("ncu", "Nsight Compute"), *_counters()]


def _profiler(name: str, title: str) -> Finding:
    path = tools.find(name)
    if path is None:
        advice = f"install {title} (a package of the CUDA toolkit's), or put it on PATH"
        return Finding(name, "not found", "missing", advice)
    release = re.search(r"[Vv]ersion ([\w.]+)", output([path, "--version"]) or "")
    on_path = "" if shutil.which(name) else f" in {path}, which is not on PATH"
    return Finding(name, (release[1] if release else "does not say its version") + on_path)


def _counters() -> list[Finding]:
    try:
        only_root = re.search(r"RmProfilingAdminOnly:\s*1", PARAMETERS.read_text(encoding="utf-8"))
    except OSError:  # no driver here
        return []
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    if not only_root or (capabilities and int(capabilities[1], 16) >> SYS_ADMIN & 1):
        return [Finding("GPU counters", "may be read")]
    advice = (
        "run as root, or give a container --cap-add SYS_ADMIN, or load the driver with "
        "NVreg_RestrictProfilingToAdminUsers=0: else ncu says ERR_NVGPUCTRPERM"
    )
    return [Finding("GPU counters", "for root only", "missing", advice)]


ASK_TORCH = """
import json, torch
seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
print("TORCH", json.dumps([torch.__version__, torch.version.cuda, seen]))
"""
TORCH_LIMIT_S = 120.0
EXTRAS = {"ray": "ray", "submitit": "slurm"}  # package → the extra that installs it
PEERS = {"liger-kernel": "liger", "quack-kernels": "quack", "nvidia-cudnn-frontend": "cudnn", "numba-cuda": "numba"}


def look_at_software() -> list[Finding]:
    """Return what pip installs, and the compilers."""
    torch, cuda = _torch()
    advice = "pip install triton (Linux only); impl=triton needs it"
    packages = [_package("Triton", "triton", "missing", advice)]
    for package, extra in EXTRAS.items():
        advice = f"pip install -e '.[{extra}]' in the checkout, for launcher={extra}"
        packages.append(_package(package, package, "note", advice))
    return [Finding("Python", sys.version.split()[0]), torch, *packages, _peers(), _nvcc(cuda), _cxx()]


def _package(name: str, package: str, state: State, advice: str) -> Finding:
    try:
        return Finding(name, version(package))
    except PackageNotFoundError:
        return Finding(name, "not installed", state, advice)


def _peers() -> Finding:
    """Return which other libraries can be measured; each extra has the name of its implementation."""
    there, missing = [], []
    for package, extra in PEERS.items():
        try:
            there.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(extra)
    text = ", ".join(there) or "none installed"
    extras = ",".join(missing)
    advice = f"pip install -e '.[{extras}]' in the checkout, for impl={extras}"
    return Finding("other libraries", text, "note", advice) if missing else Finding("other libraries", text)


def _torch() -> tuple[Finding, str | None]:
    """Return the finding, and the CUDA version of torch. A child process imports it: a broken driver may crash it."""
    answer = re.search(r"^TORCH (.*)$", output([sys.executable, "-c", ASK_TORCH], TORCH_LIMIT_S) or "", re.MULTILINE)
    if not answer:
        advice = f"{sys.executable} -c 'import torch' says why"
        return Finding("torch", "it cannot be imported", "missing", advice), None
    installed, cuda, seen = json.loads(answer[1])
    if cuda is None:
        advice = "for GPUs install a build of torch with CUDA, as its site says for this machine"
        return Finding("torch", f"{installed}, for the CPU only", "note", advice), None
    text = f"{installed}, for CUDA {cuda}; it sees {seen or 'no'} GPU{'s' * (seen > 1)}"
    return Finding("torch", text) if seen else Finding("torch", text, "note", "see the GPUs"), cuda


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
            return Finding("C++ compiler", (output([name, "--version"]) or name).splitlines()[0])
    advice = "install g++ (apt-get install g++): torch.compile on the CPU and Triton's launchers need it"
    return Finding("C++ compiler", "not found", "missing", advice)


GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
LEAST_FREE_BYTES = 2**30
BUSY_SHARE = 0.2  # of the cores, by the load average


def look_at_surroundings() -> list[Finding]:
    """Return findings about the CPU, disks, locks, W&B and the certificate of ``verify``."""
    return [
        *_cpu(),
        _disk("disk for results", Path("outputs"), "choose another place with output_dir="),
        _disk("disk for cache", identity.cache_folder(""), "set XDG_CACHE_HOME to another place"),
        _locks(),
        _wandb(),
        _certificate(),
    ]


def _cpu() -> list[Finding]:
    cores, load = processes.cores(), os.getloadavg()[0]
    text = f"{cores} cores, load average {load:.2f}"
    advice = "wait until nothing else runs: CPU times need an idle machine"
    found = [Finding("CPU", text, "note", advice) if load > BUSY_SHARE * cores else Finding("CPU", text)]
    if GOVERNOR.is_file() and (governor := GOVERNOR.read_text(encoding="utf-8").strip()) != "performance":
        advice = "cpupower frequency-set -g performance (as root), for CPU times that repeat"
        found.append(Finding("CPU governor", governor, "note", advice))
    return found


def _disk(name: str, folder: Path, advice: str) -> Finding:
    there = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
    free = shutil.disk_usage(there).free
    text = f"{free / 2**30:.0f} GiB free in {there.absolute()}"
    if not os.access(there, os.W_OK):
        return Finding(name, f"{text}, which cannot be written to", "missing", advice)
    return Finding(name, text, "note", advice) if free < LEAST_FREE_BYTES else Finding(name, text)


def _locks() -> Finding:
    try:
        return Finding("GPU locks", f"in {lock.folder()}")
    except BadInput as error:
        return Finding("GPU locks", "no place for them", "missing", str(error))


def _wandb() -> Finding:
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("disabled", "offline", "dryrun"):
        return Finding("W&B", f"WANDB_MODE={mode}", "note", "unset WANDB_MODE to upload runs")
    if os.environ.get("WANDB_API_KEY"):
        return Finding("W&B", "a key is in the environment")
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.environ.get("NETRC")).authenticators(host):
            return Finding("W&B", f"logged in to {host}")
    return Finding("W&B", "not logged in: runs are not logged", "note", "wandb login, or log=none")


def _certificate() -> Finding:
    kept = sorted(identity.cache_folder("certificate").glob("*.json"))
    if kept:
        return Finding("self-tests of the timings", f"done: {len(kept)} kept in {kept[0].parent}")
    return Finding("self-tests of the timings", "not done here", "note", "python -m runner verify")
