"""The GPUs of this machine, found without torch and within a time limit.

NVML may hang in the driver, where not even SIGKILL ends a process (NVIDIA/open-gpu-kernel-modules#1333). So a child
process asks it, ``python -m runner.device.gpus``, and is left behind at the limit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.device import processes
from runner.experiment.schema import BadInput

CONTEXT_BYTES = 600 * 2**20  # GPU memory of a process that uses CUDA
# An idle GPU has a few MiB in use, a desktop up to about 200; the context of one CUDA process takes 530 on an H100.
FOREIGN_BYTES = 300 * 2**20

ANYWHERE = ("0", "all")  # values of ``launcher.gpus`` that mean the CPU on a machine without a GPU


@dataclass(frozen=True)
class Gpu:
    """A GPU or a MIG instance, and its memory when it was looked at.

    ``index`` counts the GPUs that this process may see: ``cuda:<index>`` in a program that sees all of them.
    ``uuid`` is ``GPU-...`` or ``MIG-...``, as CUDA_VISIBLE_DEVICES takes it. ``used_bytes`` leaves out what the driver
    reserves for itself. Both sizes are 0 where the driver does not report them. ``parent_uuid`` names the GPU that
    holds a MIG instance.
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
    """Return the GPUs that a CUDA program started from here sees; empty if there is none or no driver answers."""
    return look(limit_s)[0]


def look(limit_s: float = 20.0) -> tuple[list[Gpu], str]:
    """Return ``visible``, and in one sentence why it is empty; "" if it is not. Takes at most ``limit_s`` + 1 s.

    The indices in CUDA_VISIBLE_DEVICES count in the order of the PCI bus here, as in NVML and nvidia-smi. CUDA does the
    same if all GPUs are of one kind, or with CUDA_DEVICE_ORDER=PCI_BUS_ID. Otherwise only CUDA knows its order, which
    begins with the fastest GPU. UUIDs name the same GPU everywhere.
    """
    deadline = time.monotonic() + limit_s
    text = processes.output([sys.executable, "-P", "-m", "runner.device.gpus"], limit_s)
    if not text:
        if time.monotonic() >= deadline:
            return [], f"the NVIDIA driver did not answer within {limit_s:g} s; see whether nvidia-smi does"
        return [], "no NVIDIA driver answers here"
    found = [Gpu(**record) for record in json.loads(text.splitlines()[-1])]
    if not found:
        return [], "the NVIDIA driver has no GPU for this process"
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    admitted = found if wanted is None else _admitted(found, wanted)
    if not admitted:
        return [], f"CUDA_VISIBLE_DEVICES={wanted!r} hides all GPUs: {_names(found)}"
    return [replace(gpu, index=place) for place, gpu in enumerate(admitted)], ""


def choose(asked: str, found: Sequence[Gpu], why: str = "") -> list[Gpu]:
    """Return the GPUs of ``found`` that ``asked`` names, in its order.

    ``asked`` is "all", or indices, UUIDs and unique beginnings of UUIDs, separated by commas. The UUID of a divided GPU
    stands for its MIG instances. ``why`` says why ``found`` is empty, as ``look`` returns it.

    Raises:
        BadInput: a GPU is not there or is named twice.

    """
    if not found:
        raise BadInput(f"launcher.gpus={asked}: there is no GPU here" + (f": {why}" if why else ""))
    if asked.strip() == "all":
        return list(found)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = f"there is {_names(found)}" + ("" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})")
    chosen: list[Gpu] = []
    for word in (word.strip() for word in asked.split(",")):
        named = _named(word, found)
        if not named:
            problem = f"no single GPU {word or 'without a name'}"
            raise BadInput(f"launcher.gpus={asked}: {problem}; {there}; give all, indices or UUIDs")
        if any(gpu in chosen for gpu in named):
            raise BadInput(f"launcher.gpus={asked}: {word} is named twice; {there}")
        chosen += named
    return chosen


def names(used: Sequence[Gpu]) -> set[str] | None:
    """Return the names of ``used`` as rows have them; None if one is a part of a GPU (MIG): rows name the whole GPU."""
    return None if any(gpu.parent_uuid for gpu in used) else {gpu.name for gpu in used}


def busy(gpu: Gpu) -> str:
    """Return a sentence if other processes use ``gpu``, else "".

    Look at the GPU again before the call, with its lock held and no worker started. The memory in use decides, since a
    container hides the processes of others.
    """
    sentence = f"{gpu} holds {gpu.used_bytes / 2**30:.1f} GiB for other processes: timings may suffer"
    return sentence if gpu.used_bytes > FOREIGN_BYTES else ""


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)


def _named(word: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs with the index ``word``, or whose UUID is ``word`` or is the only one that begins with it.

    The UUID of a divided GPU names its instances.
    """
    if same := [gpu for gpu in gpus if str(gpu.index) == word]:
        return same
    uuids = {uuid for gpu in gpus for uuid in (gpu.uuid, gpu.parent_uuid) if uuid}
    matches = [word] if word in uuids else [uuid for uuid in uuids if word and uuid.startswith(word)]
    return [gpu for gpu in gpus if matches in ([gpu.uuid], [gpu.parent_uuid])]


def _admitted(gpus: Sequence[Gpu], wanted: str) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES=``wanted`` shows, in its order."""
    admitted: list[Gpu] = []
    for word in wanted.split(","):
        named = _named(word.strip(), gpus)
        if not named:  # CUDA ignores the rest of the list too
            break
        admitted += named
    return admitted


def _nvml_gpus() -> list[Gpu]:
    """Return every GPU and MIG instance, in the child process; ``index`` is that of the whole GPU. Raises NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    found: list[Gpu] = []
    index = 0
    for place in range(pynvml.nvmlDeviceGetCount()):
        try:
            whole = pynvml.nvmlDeviceGetHandleByIndex(place)
            found += _nvml_devices(pynvml, whole, index)
        except pynvml.NVMLError:  # NVML counts a GPU that is lost or kept from this container, CUDA does not
            continue
        index += 1
    return found


def _nvml_devices(nvml: Any, whole: Any, index: int) -> list[Gpu]:
    """Return the GPU itself, or the instances of a divided GPU, which may be none."""
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
        except nvml.NVMLError:  # no instance at this place
            continue
        mig_uuid, mig_name = str(nvml.nvmlDeviceGetUUID(part)), str(nvml.nvmlDeviceGetName(part))
        instances.append(Gpu(index, mig_uuid, mig_name, *_nvml_memory(nvml, part), uuid))
    return instances


def _nvml_memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return total and used bytes; zeros if NVML does not report them, as for a GPU that shares the CPU's memory."""
    try:  # in the first version of the call, ``used`` includes the 0.5 to 1 GiB that the driver keeps for itself
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return 0, 0
    return int(memory.total), int(memory.used)


if __name__ == "__main__":
    print(json.dumps([asdict(gpu) for gpu in _nvml_gpus()]))
