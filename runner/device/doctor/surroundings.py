"""The rest of the machine: cores, memory, disks, the locks, W&B, and what earlier self-tests said of the timings."""

from __future__ import annotations

import netrc
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from runner.device import cache, lock, processes
from runner.device.doctor import Finding
from runner.experiment.errors import BadInput

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
LEAST_FREE_BYTES = 2**30
BUSY_SHARE = 0.2  # of the cores, by the load average


def look() -> list[Finding]:
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
        _disk("disk for cache", cache.folder(""), "set XDG_CACHE_HOME to another place"),
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
    kept = sorted(cache.folder("certificate").glob("*.json"))
    if kept:
        return Finding("self-tests of the timings", f"done: {len(kept)} kept in {kept[0].parent}")
    return Finding("self-tests of the timings", "not done here", "note", "python -m runner verify")
