"""What this machine can do, and what to type for each thing that it cannot yet. One file for each kind of thing."""

from __future__ import annotations

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
    """One thing: what was found of it, and what to do unless it is ok."""

    what: str
    found: str
    state: State = "ok"
    advice: str = ""


def examine() -> Iterator[tuple[str, list[Finding]]]:
    """Yield each kind of thing with its findings; a kind that cannot be examined yields one finding that says so."""
    kinds = {
        "gpus": look_at_gpus,
        "profilers": look_at_profilers,
        "software": look_at_software,
        "surroundings": look_at_surroundings,
    }
    for name, look in kinds.items():
        try:
            findings = look()
        except Exception as error:  # one kind that fails must not hide the others
            findings = [Finding(name, f"{type(error).__name__}: {error}", "note", "please report this")]
        yield name, findings


FIELDS = ("uuid", "persistence_mode", "compute_mode", "power.limit", "power.default_limit", "clocks.max.sm")
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108  where its control daemon listens, unless told otherwise


def look_at_gpus() -> list[Finding]:
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


PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
SYS_ADMIN = 21  # bit of the capability that the driver asks for, which root in a container need not have
MOST_PARANOID = 2  # at which processes of one's own may still be sampled


def look_at_profilers() -> list[Finding]:
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


ASK_TORCH = """
import json, torch
seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
print("TORCH", json.dumps([torch.__version__, torch.version.cuda, seen]))
"""
TORCH_LIMIT_S = 120.0
EXTRAS = {"ray": "ray", "submitit": "slurm"}  # package → the extra that installs it


def look_at_software() -> list[Finding]:
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


GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
LEAST_FREE_BYTES = 2**30
BUSY_SHARE = 0.2  # of the cores, by the load average


def look_at_surroundings() -> list[Finding]:
    """In the order in which a run meets them."""
    return [*_cpu(), *_disks(), _locks(), _wandb(), _certificates()]


def _cpu() -> list[Finding]:
    cores, load = processes.cores(), os.getloadavg()[0]
    busy = load > BUSY_SHARE * cores
    advice = "wait for it, or end it: CPU times are of a machine that does nothing else" if busy else ""
    found = [Finding("CPU", f"{cores} cores, load average {load:.2f}", "note" if busy else "ok", advice)]
    try:
        governor = GOVERNOR.read_text(encoding="utf-8").strip()
    except OSError:
        return found
    if governor != "performance":
        advice = "cpupower frequency-set -g performance (as root), for CPU times that repeat"
        found.append(Finding("CPU governor", governor, "note", advice))
    return found


def _disks() -> list[Finding]:
    return [
        _disk("disk for results", Path("outputs"), "choose another place with output_dir="),
        _disk("disk for cache", identity.cache_folder(""), "set XDG_CACHE_HOME to another place"),
    ]


def _disk(name: str, folder: Path, advice: str) -> Finding:
    there = next((one for one in (folder, *folder.absolute().parents) if one.is_dir()), Path("/"))
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
    try:
        if netrc.netrc(os.environ.get("NETRC")).authenticators(host):
            return Finding("W&B", f"logged in to {host}")
    except (OSError, netrc.NetrcParseError):
        pass
    return Finding("W&B", "not logged in: runs are kept offline", "note", "wandb login, or log=none")


def _certificates() -> Finding:
    kept = sorted(identity.cache_folder("certificate").glob("*.json"))
    if kept:
        return Finding("self-tests of the timings", f"done: {len(kept)} kept in {kept[0].parent}")
    return Finding("self-tests of the timings", "not done here", "note", "python -m runner verify")
