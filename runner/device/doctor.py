"""The checks of ``python -m runner doctor``: parts of this machine, and advice for missing parts."""

import contextlib
import json
import netrc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ..records.bad_input import BadInput
from . import cache, gpus, lock, processes, tools
from .files import text_in
from .identity import package_version
from .processes import output


@dataclass(frozen=True)
class Check:
    """A part of this machine, and advice if it is missing or could be better."""

    what: str
    text: str
    advice: str = ""
    missing: bool = False

    @property
    def state(self) -> Literal["ok", "note", "missing"]:
        """The state; note: the part works, but could be better."""
        return "missing" if self.missing else "note" if self.advice else "ok"


def examine() -> Iterator[tuple[str, list[Check]]]:
    """Yield the name of each group of checks, and its checks."""
    groups = {
        "gpus": check_gpus,
        "profilers": check_profilers,
        "software": check_software,
        "surroundings": check_surroundings,
    }
    for name, group in groups.items():
        try:
            checks = group()
        except Exception as error:  # a group that fails must not hide the others
            checks = [Check(name, f"{type(error).__name__}: {error}", "please report this")]
        yield name, checks


FIELDS = ("uuid", "persistence_mode", "compute_mode", "power.limit", "power.default_limit", "clocks.max.sm")
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108  the default folder of MPS's control daemon


def check_gpus() -> list[Check]:
    """Return a check for each GPU, and for each setting that makes its timings worse."""
    visible, reason = gpus.query_gpus()
    if not visible:
        return [Check("GPU", reason, "CPU cases can be run; for GPUs see that nvidia-smi lists them here")]
    settings = _settings()
    checks = [check for gpu in visible for check in _gpu(gpu, settings.get(gpu.parent_uuid or gpu.uuid, {}))]
    if Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPES)).exists():
        advice = "echo quit | nvidia-cuda-mps-control: under it one fatal fault ends every process on the GPU"
        checks.append(Check("MPS", "its control daemon has a pipe here", advice))
    return checks


def _gpu(gpu: gpus.Gpu, settings: dict[str, str]) -> Iterator[Check]:
    gib = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory unknown"
    clock = f", up to {settings['clocks.max.sm']} MHz" if settings.get("clocks.max.sm", "").isdigit() else ""
    name, administer = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index}"
    yield Check(name, f"{gpu.name}, {gib}{clock}, {gpu.uuid}")
    if others := gpus.busy(gpu):
        yield Check(name, others, "end what uses it, or choose another GPU with launcher.gpus")
    if settings.get("persistence_mode") == "Disabled":
        advice = f"{administer} -pm 1 (as root), or every start of a worker waits for the driver"
        yield Check(name, "persistence mode is off", advice)
    if (mode := settings.get("compute_mode", "Default")) not in ("Default", "[N/A]"):
        advice = f"{administer} -c 0 (as root): else no worker can stand ready, and none compile ahead"
        yield Check(name, f"compute mode {mode}", advice)
    with contextlib.suppress(KeyError, ValueError):  # [N/A]
        limit, default = (float(settings[key]) for key in ("power.limit", "power.default_limit"))
        if limit < default:
            advice = f"{administer} -pl {default:.0f} (as root) for its own limit; below it, times are longer"
            yield Check(name, f"power limit {limit:.0f} of {default:.0f} W", advice)


def _settings() -> dict[str, dict[str, str]]:
    """Return the fields that nvidia-smi reports, by the UUID of the GPU."""
    lines = output(["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]) or ""
    rows = [[cell.strip() for cell in line.split(",")] for line in lines.splitlines()]
    return {row[0]: dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)}


PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
SYS_ADMIN = 21  # bit of the capability that the driver requires, which root in a container may lack


def check_profilers() -> list[Check]:
    """Return checks of the profilers, and of the driver's permission to read hardware counters."""
    return [_profiler("nsys", "Nsight Systems"), _profiler("ncu", "Nsight Compute"), *_counters()]


def _profiler(name: str, title: str) -> Check:
    if (path := tools.find_tool(name)) is None:
        advice = f"install {title} (a package of the CUDA toolkit's), or put it on PATH"
        return Check(name, "not found", advice, missing=True)
    release = re.search(r"[Vv]ersion ([\w.]+)", output([path, "--version"]) or "")
    on_path = "" if shutil.which(name) else f" in {path}, which is not on PATH"
    return Check(name, (release[1] if release else "does not say its version") + on_path)


def _counters() -> list[Check]:
    if not PARAMETERS.exists():  # no driver here
        return []
    only_root = re.search(r"RmProfilingAdminOnly:\s*1", text_in(PARAMETERS))
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", text_in(STATUS), re.MULTILINE)
    if not only_root or (capabilities and int(capabilities[1], 16) >> SYS_ADMIN & 1):
        return [Check("GPU counters", "may be read")]
    advice = (
        "run as root, or give a container --cap-add SYS_ADMIN, or load the driver with "
        "NVreg_RestrictProfilingToAdminUsers=0: else ncu says ERR_NVGPUCTRPERM"
    )
    return [Check("GPU counters", "for root only", advice, missing=True)]


ASK_TORCH = """
import json, torch
seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
print("TORCH", json.dumps([torch.__version__, torch.version.cuda, seen]))
"""
TORCH_LIMIT_S = 120.0
EXTRAS = {"ray": "ray", "submitit": "slurm"}  # package → the extra that installs it
KERNELS = Path(__file__).resolve().parents[1] / "kernels"
# A package of another library, and the extra that installs it.
NEEDS = re.compile(r'\bneeds\("([^"]+)", extra="([^"]+)"\)')


def check_software() -> list[Check]:
    """Return checks of Python packages and compilers."""
    torch, cuda = _torch()
    packages = [_package("Triton", "triton", "pip install triton (Linux only); impl=triton needs it", missing=True)]
    for package, extra in EXTRAS.items():
        advice = f"pip install -e '.[{extra}]' in the checkout, for launcher={extra}"
        packages.append(_package(package, package, advice))
    return [Check("Python", sys.version.split()[0]), torch, *packages, _peers(), _nvcc(cuda), _cxx()]


def _package(name: str, package: str, advice: str, *, missing: bool = False) -> Check:
    version = package_version(package)
    return Check(name, version) if version else Check(name, "not installed", advice, missing)


def _peers() -> Check:
    """Return the other libraries that can be measured. Each extra has the name of its implementation."""
    sources = "".join(path.read_text(encoding="utf-8") for path in KERNELS.rglob("*.py"))
    peers = [(package, extra, package_version(package)) for package, extra in sorted({*NEEDS.findall(sources)})]
    text = ", ".join(f"{package} {version}" for package, _, version in peers if version) or "none installed"
    extras = ",".join(extra for _, extra, version in peers if not version)
    advice = f"pip install -e '.[{extras}]' in the checkout, for impl={extras}"
    return Check("other libraries", text, advice if extras else "")


def _torch() -> tuple[Check, str | None]:
    """Return the check, and the CUDA version of torch, which is imported in a child process, since it may crash."""
    answer = re.search(r"^TORCH (.*)$", output([sys.executable, "-c", ASK_TORCH], TORCH_LIMIT_S) or "", re.MULTILINE)
    if not answer:
        advice = f"{sys.executable} -c 'import torch' says why"
        return Check("torch", "it cannot be imported", advice, missing=True), None
    installed, cuda, seen = json.loads(answer[1])
    if cuda is None:
        advice = "for GPUs install a build of torch with CUDA, as its site says for this machine"
        return Check("torch", f"{installed}, for the CPU only", advice), None
    text = f"{installed}, for CUDA {cuda}; it sees {seen or 'no'} GPU{'s' * (seen > 1)}"
    return Check("torch", text, "" if seen else "see the GPUs"), cuda


def _nvcc(cuda: str | None) -> Check:
    release = re.search(r"release ([\d.]+)", output(["nvcc", "--version"]) or "")
    toolkit = f"the CUDA toolkit {cuda.partition('.')[0]}" if cuda else "the CUDA toolkit"
    advice = f"install {toolkit}, and put its bin on PATH: CUDA C++ kernels need it"
    if not release:
        return Check("nvcc", "not found", advice, missing=True)
    if cuda and release[1].partition(".")[0] != cuda.partition(".")[0]:
        return Check("nvcc", f"{release[1]}, while torch is for CUDA {cuda}", advice)
    return Check("nvcc", release[1])


def _cxx() -> Check:
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return Check("C++ compiler", (output([name, "--version"]) or name).splitlines()[0])
    advice = "install g++ (apt-get install g++): torch.compile on the CPU and Triton's launchers need it"
    return Check("C++ compiler", "not found", advice, missing=True)


GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
LEAST_FREE_BYTES = 2**30
BUSY_SHARE = 0.2  # share of the cores, by the load average


def check_surroundings() -> list[Check]:
    """Return checks of the CPU, disks, locks, W&B and the certificate of ``verify``."""
    files = sorted(cache.cache_folder("certificate").glob("*.json"))
    done = f"done: {len(files)} kept in {files[0].parent}" if files else "not done here"
    return [
        *_cpu(),
        _disk("disk for results", Path("outputs"), "choose another place with output_dir="),
        _disk("disk for cache", cache.cache_folder(""), "set XDG_CACHE_HOME to another place"),
        _locks(),
        _wandb(),
        Check("self-tests of the timings", done, "" if files else "python -m runner verify"),
    ]


def _cpu() -> list[Check]:
    cores, load = processes.cores(), os.getloadavg()[0]
    advice = "wait until nothing else runs: CPU times need an idle machine" if load > BUSY_SHARE * cores else ""
    checks = [Check("CPU", f"{cores} cores, load average {load:.2f}", advice)]
    if (governor := text_in(GOVERNOR).strip()) not in ("", "performance"):
        advice = "cpupower frequency-set -g performance (as root), for CPU times that repeat"
        checks.append(Check("CPU governor", governor, advice))
    return checks


def _disk(name: str, folder: Path, advice: str) -> Check:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:.0f} GiB free in {existing.absolute()}"
    if not os.access(existing, os.W_OK):
        return Check(name, f"{text}, which cannot be written to", advice, missing=True)
    return Check(name, text, advice if free < LEAST_FREE_BYTES else "")


def _locks() -> Check:
    try:
        return Check("GPU locks", f"in {lock.folder()}")
    except BadInput as error:
        return Check("GPU locks", "no place for them", str(error), missing=True)


def _wandb() -> Check:
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("disabled", "offline", "dryrun"):
        return Check("W&B", f"WANDB_MODE={mode}", "unset WANDB_MODE to upload runs")
    if os.environ.get("WANDB_API_KEY"):
        return Check("W&B", "a key is in the environment")
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.environ.get("NETRC")).authenticators(host):
            return Check("W&B", f"logged in to {host}")
    return Check("W&B", "not logged in: runs are not logged", "wandb login, or log=none")
