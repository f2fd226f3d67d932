"""Which GPUs this machine has, asked without torch and without ever hanging.

NVML may hang in the driver, where not even SIGKILL ends a process (NVIDIA/open-gpu-kernel-modules#1333). So it is asked
in a process of its own, ``python -m runner.device.gpus``, which is given up at a limit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.device import processes
from runner.experiment.schema import BadInput

CONTEXT_BYTES = 600 * 2**20  # of GPU memory, that a process holds as soon as it uses CUDA
# An idle GPU has a few MiB in use, a desktop up to about 200; the context of one CUDA process takes 530 on an H100.
FOREIGN_BYTES = 300 * 2**20

ANYWHERE = ("0", "all")  # what may be asked for where there is none too, which leaves the CPU: the default, and all


@dataclass(frozen=True)
class Gpu:
    """A GPU or a MIG instance, as it was when it was looked at.

    ``index`` is its place among those that this process may see: ``cuda:<index>`` in a program that sees all of them.
    ``uuid`` is ``GPU-...`` or ``MIG-...`` and good for CUDA_VISIBLE_DEVICES. ``used_bytes`` leaves out what the driver
    reserves for itself. Both sizes are 0 where the driver has no such figure. ``parent_uuid`` is of the GPU that a MIG
    instance is a part of.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    used_bytes: int
    parent_uuid: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


def visible(limit_s: float = 20.0) -> list[Gpu]:
    """The GPUs that a CUDA program started from here would see; [] if there is none, or no driver that answers."""
    return look(limit_s)[0]


def look(limit_s: float = 20.0) -> tuple[list[Gpu], str]:
    """``visible``, and why there is none: one sentence, "" if there is one. Takes at most ``limit_s``, and 1 s to kill.

    CUDA_VISIBLE_DEVICES counts here in the order of the PCI bus, as NVML and nvidia-smi do. CUDA does so too where all
    GPUs are of one kind, or with CUDA_DEVICE_ORDER=PCI_BUS_ID; else it puts the fastest first, which nothing but CUDA
    can tell. Naming GPUs by UUID is free of that.
    """
    deadline = time.monotonic() + limit_s
    found = _ask_nvml(deadline, limit_s)
    if found is None and time.monotonic() < deadline:
        found = _ask_smi(deadline)
    if found is None and time.monotonic() >= deadline:
        return [], f"the NVIDIA driver did not answer within {limit_s:g} s; see whether nvidia-smi does"
    if not found:
        return [], "no NVIDIA driver answers here" if found is None else "the NVIDIA driver has no GPU for this process"
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    admitted = found if wanted is None else _admitted(found, wanted)
    if not admitted:
        return [], f"CUDA_VISIBLE_DEVICES={wanted!r} hides all that there is: {_names(found)}"
    return [replace(gpu, index=place) for place, gpu in enumerate(admitted)], ""


def choose(asked: str, found: Sequence[Gpu], why: str = "") -> list[Gpu]:
    """Those of ``found`` that ``asked`` names: "all", or indices, UUIDs and unique beginnings of UUIDs, with commas.

    The order is that of ``asked``. The UUID of a divided GPU stands for its MIG instances. ``why`` tells why nothing
    is found, if ``look`` knew. Raises BadInput if anything asked for is not there, or is named twice.
    """
    if not found:
        raise BadInput(f"launcher.gpus={asked}: there is no GPU here" + (f": {why}" if why else ""))
    if asked.strip() == "all":
        return list(found)
    chosen: list[Gpu] = []
    for word in (word.strip() for word in asked.split(",")):
        named = [gpu for gpu in found if str(gpu.index) == word] or _by_uuid(word, found)
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        there = f"there is {_names(found)}" + ("" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})")
        if not named:
            several = word and any(name.startswith(word) for name in _uuids(found))
            problem = f"{word} begins several UUIDs" if several else f"no GPU {word or 'without a name'}"
            raise BadInput(f"launcher.gpus={asked}: {problem}; {there}; give all, indices or UUIDs")
        if any(gpu in chosen for gpu in named):
            raise BadInput(f"launcher.gpus={asked}: {word} is named twice; {there}")
        chosen += named
    return chosen


def busy(gpu: Gpu) -> str:
    """A sentence if others use ``gpu``, else "". To be asked of a fresh look, locks held and nothing of ours started.

    Memory tells, since a container hides the processes of others.
    """
    if gpu.used_bytes <= FOREIGN_BYTES:
        return ""
    return f"{gpu} holds {gpu.used_bytes / 2**30:.1f} GiB for other processes: timings may suffer"


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)


def _uuids(gpus: Sequence[Gpu]) -> set[str]:
    return {uuid for gpu in gpus for uuid in (gpu.uuid, gpu.parent_uuid) if uuid}


def _by_uuid(word: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPU, or the instances of the GPU, whose UUID ``word`` is or alone begins; else []."""
    uuids = _uuids(gpus)
    matches = [word] if word in uuids else [uuid for uuid in uuids if word and uuid.startswith(word)]
    return [gpu for gpu in gpus if matches in ([gpu.uuid], [gpu.parent_uuid])]


def _admitted(gpus: Sequence[Gpu], wanted: str) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES=``wanted`` lets through, in its order. The rules are those that torch.cuda found out.

    A list is of indices, of GPU-... or of MIG-...; what is anything else, or is not there, hides the rest of the list.
    What is named twice hides everything. An index ends where its digits do.
    """
    kind = next((kind for kind in ("GPU-", "MIG-") if wanted.strip().startswith(kind)), "")
    admitted: list[Gpu] = []
    for word in (word.strip() for word in wanted.split(",")):
        digits = re.match(r"\+?\d+", word)
        if kind:
            named = _by_uuid(word, gpus) if word.startswith(kind) else []
        else:
            named = [gpu for gpu in gpus if digits and gpu.index == int(digits[0])]
        if not named:
            break
        if any(gpu in admitted for gpu in named):
            return []
        admitted += named
    return admitted


def _ask_nvml(deadline: float, limit_s: float) -> list[Gpu] | None:
    """Every GPU and MIG instance, ``index`` that of the whole GPU; None if there is no answer."""
    text = processes.output([sys.executable, "-m", "runner.device.gpus", str(limit_s)], deadline - time.monotonic())
    try:
        return None if text is None else [Gpu(**record) for record in json.loads(text)]
    except (ValueError, TypeError):
        return None


def _ask_smi(deadline: float) -> list[Gpu] | None:
    """The same from nvidia-smi, which does not tell the memory of a MIG instance."""
    fields = "index,uuid,name,memory.total,memory.used,mig.mode.current"
    text = processes.output(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], deadline - time.monotonic()
    )
    if text is None:
        return None
    rows = [row for line in text.splitlines() if len(row := [word.strip() for word in line.split(",")]) == 6]
    divided = {uuid for _, uuid, *_, mig in rows if mig == "Enabled"}
    instances = (
        _smi_instances(processes.output(["nvidia-smi", "-L"], deadline - time.monotonic()) or "") if divided else {}
    )
    found: list[Gpu] = []
    for index, (_, uuid, name, total, used, _) in enumerate(rows):
        if uuid not in divided:
            found.append(Gpu(index, uuid, name, _mebibytes(total), _mebibytes(used)))
        for mig_uuid, mig_name in instances.get(uuid, []):
            found.append(Gpu(index, mig_uuid, f"{name} {mig_name}", 0, 0, uuid))
    return found


def _smi_instances(listing: str) -> dict[str, list[tuple[str, str]]]:
    """``(uuid, name)`` of the MIG instances by the UUID of their GPU, as ``nvidia-smi -L`` lists them under it."""
    instances: dict[str, list[tuple[str, str]]] = {}
    uuid = ""
    for line in listing.splitlines():
        if whole := re.match(r"GPU \d+:.*\(UUID: (GPU-[^)]+)\)", line):
            uuid = whole[1]
        elif part := re.match(r"\s+(MIG \S+)\s+Device\s+\d+:\s+\(UUID: (MIG-[^)]+)\)", line):
            instances.setdefault(uuid, []).append((part[2], part[1]))
    return instances


def _mebibytes(text: str) -> int:
    """In bytes; ``[N/A]`` is 0."""
    return int(text) * 2**20 if text.isdigit() else 0


def _nvml_gpus() -> list[Gpu]:
    """In the child: what NVML says. Raises whatever NVML does, if it says nothing at all."""
    import pynvml

    pynvml.nvmlInit()
    found: list[Gpu] = []
    index = 0
    for place in range(pynvml.nvmlDeviceGetCount()):
        try:
            whole = pynvml.nvmlDeviceGetHandleByIndex(place)
            found += _nvml_devices(pynvml, whole, index)
        except pynvml.NVMLError:  # lost, or kept from this container: NVML counts it, CUDA does not
            continue
        index += 1
    return found


def _nvml_devices(nvml: Any, whole: Any, index: int) -> list[Gpu]:
    """The GPU itself; its instances, of which there may be none, if it is divided."""
    uuid = str(nvml.nvmlDeviceGetUUID(whole))
    name = str(nvml.nvmlDeviceGetName(whole))
    try:
        divided = nvml.nvmlDeviceGetMigMode(whole)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:  # a GPU that cannot be divided
        divided = False
    if not divided:
        return [Gpu(index, uuid, name, *_nvml_memory(nvml, whole))]
    instances = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place)
        except nvml.NVMLError:  # places may be empty
            continue
        mig_uuid, mig_name = str(nvml.nvmlDeviceGetUUID(part)), str(nvml.nvmlDeviceGetName(part))
        instances.append(Gpu(index, mig_uuid, mig_name, *_nvml_memory(nvml, part), uuid))
    return instances


def _nvml_memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Total and used bytes; zeros if it does not say, as where the GPU shares the memory of the CPU.

    The second version of the call, since in the first ``used`` has the 0.5 to 1 GiB that the driver keeps for itself.
    """
    for version in ({"version": nvml.nvmlMemory_v2}, {}):
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, **version)
        except nvml.NVMLError:
            continue
        return int(memory.total), int(memory.used)
    return 0, 0


if __name__ == "__main__":
    if sys.argv[1:]:
        signal.alarm(int(float(sys.argv[1])) + 2)  # should nobody be left to kill it
    print(json.dumps([asdict(gpu) for gpu in _nvml_gpus()]))
