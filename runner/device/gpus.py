"""The GPUs of this machine, found without torch and within a time limit.

NVML may hang in the driver, where not even SIGKILL ends a process (NVIDIA/open-gpu-kernel-modules#1333). So a child
process queries it, ``python -m runner.device.gpus``, and is left behind at the limit.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..records.bad_input import BadInput
from . import processes

CONTEXT_BYTES = 600 * 2**20  # GPU memory of a process that uses CUDA
# An idle GPU has a few MiB in use, a desktop up to about 200; the context of one CUDA process takes 530 on an H100.
FOREIGN_BYTES = 300 * 2**20

ANYWHERE = ("0", "all")  # values of ``launcher.gpus`` that mean the CPU on a machine without a GPU


@dataclass(frozen=True)
class Gpu:
    """A GPU or a MIG instance, and its memory at the time of the query.

    ``index`` counts the GPUs that this process may see: ``cuda:<index>`` in a program that sees all of them.
    ``uuid`` is ``GPU-...`` or ``MIG-...``, as in CUDA_VISIBLE_DEVICES. ``used_bytes`` does not include the driver's own
    memory. Both sizes are 0 if the driver does not report them. ``parent_uuid`` is the GPU of a MIG instance.
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
    """Return the GPUs that a CUDA program started from here sees; [] without a GPU or driver."""
    return query_gpus(limit_s)[0]


def query_gpus(limit_s: float = 20.0) -> tuple[list[Gpu], str]:
    """Return the visible GPUs, and the reason if there are none. Takes at most ``limit_s`` + 1 s.

    Indices in CUDA_VISIBLE_DEVICES count in the order of the PCI bus here, as in NVML and nvidia-smi, and as in CUDA if
    all GPUs are of one model, or with CUDA_DEVICE_ORDER=PCI_BUS_ID. Otherwise CUDA's order begins with the fastest GPU.
    UUIDs name the same GPU everywhere.
    """
    deadline = time.monotonic() + limit_s
    text = processes.output([sys.executable, "-P", "-m", "kernel_runner.device.gpus"], limit_s)
    if not text:
        if time.monotonic() >= deadline:
            return [], f"the NVIDIA driver did not answer within {limit_s:g} s; see whether nvidia-smi does"
        return [], "no NVIDIA driver answers here"
    present = [Gpu(**record) for record in json.loads(text.splitlines()[-1])]
    if not present:
        return [], "the NVIDIA driver has no GPU for this process"
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    admitted = present if allowed is None else _admitted(present, allowed)
    if not admitted:
        return [], f"CUDA_VISIBLE_DEVICES={allowed!r} hides all GPUs: {_names(present)}"
    return [replace(gpu, index=place) for place, gpu in enumerate(admitted)], ""


def select_gpus(requested: str, present: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs of ``present`` that ``requested`` names, in its order.

    ``requested`` is "all", or indices, UUIDs and unique beginnings of UUIDs, separated by commas. The UUID of a divided
    GPU stands for its MIG instances. Raises BadInput if a GPU is not there or is named twice.
    """
    if not present:
        raise BadInput(f"launcher.gpus={requested}: there is no GPU here; leave it out")
    if requested.strip() == "all":
        return list(present)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    available = f"there is {_names(present)}" + ("" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})")
    chosen: list[Gpu] = []
    for word in map(str.strip, requested.split(",")):
        if not (named := _named(word, present)):
            problem = f"no single GPU {word or 'without a name'}"
            raise BadInput(f"launcher.gpus={requested}: {problem}; {available}; give all, indices or UUIDs")
        if any(gpu in chosen for gpu in named):
            raise BadInput(f"launcher.gpus={requested}: {word} is named twice; {available}")
        chosen += named
    return chosen


def gpu_names(used: Sequence[Gpu]) -> set[str] | None:
    """Return the names of ``used`` as in rows; None for a part of a GPU (MIG), since rows name the whole GPU."""
    return None if any(gpu.parent_uuid for gpu in used) else {gpu.name for gpu in used}


def busy(gpu: Gpu) -> str:
    """Return a sentence if other processes use ``gpu``, else "".

    Query the GPU again before the call, with its lock held and before a worker starts. The memory in use decides, since
    a container hides other processes.
    """
    sentence = f"{gpu} holds {gpu.used_bytes / 2**30:.1f} GiB for other processes: timings may suffer"
    return sentence if gpu.used_bytes > FOREIGN_BYTES else ""


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gpus)


def _named(word: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs with the index ``word``, or with a UUID that is ``word`` or alone begins with it.

    The UUID of a divided GPU names its instances.
    """
    if same := [gpu for gpu in gpus if str(gpu.index) == word]:
        return same
    uuids = {uuid for gpu in gpus for uuid in (gpu.uuid, gpu.parent_uuid) if uuid}
    matches = [word] if word in uuids else [uuid for uuid in uuids if word and uuid.startswith(word)]
    return [gpu for gpu in gpus if matches in ([gpu.uuid], [gpu.parent_uuid])]


def _admitted(gpus: Sequence[Gpu], allowed: str) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES=``allowed`` shows, in its order."""
    admitted: list[Gpu] = []
    for word in map(str.strip, allowed.split(",")):
        if not (named := _named(word, gpus)):  # CUDA ignores the rest of the list too
            break
        admitted += named
    return admitted


def _nvml_gpus() -> list[Gpu]:
    """Return every GPU and MIG instance, in the child process; ``index`` counts whole GPUs. Raises NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    wholes: list[list[Gpu]] = []
    for place in range(pynvml.nvmlDeviceGetCount()):
        # Unlike CUDA, NVML counts GPUs that are lost or hidden from this container.
        with contextlib.suppress(pynvml.NVMLError):
            wholes.append(_nvml_devices(pynvml, pynvml.nvmlDeviceGetHandleByIndex(place), len(wholes)))
    return [gpu for whole in wholes for gpu in whole]


def _nvml_devices(nvml: Any, whole: Any, index: int) -> list[Gpu]:
    """Return the GPU itself, or the instances of a divided GPU, if any."""
    try:
        divided = nvml.nvmlDeviceGetMigMode(whole)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:  # a GPU that cannot be divided
        divided = False
    if not divided:
        return [_nvml_gpu(nvml, whole, index)]
    parts = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
        with contextlib.suppress(nvml.NVMLError):  # there is no instance
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place))
    uuid = str(nvml.nvmlDeviceGetUUID(whole))
    return [_nvml_gpu(nvml, part, index, uuid) for part in parts]


def _nvml_gpu(nvml: Any, device: Any, index: int, parent_uuid: str = "") -> Gpu:
    total = used = 0  # NVML does not report them for a GPU that shares the CPU's memory
    with contextlib.suppress(nvml.NVMLError):
        # In the first version of the call, ``used`` includes the 0.5 to 1 GiB that the driver keeps for itself.
        memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
        total, used = int(memory.total), int(memory.used)
    uuid, name = str(nvml.nvmlDeviceGetUUID(device)), str(nvml.nvmlDeviceGetName(device))
    return Gpu(index, uuid, name, total, used, parent_uuid)


if __name__ == "__main__":
    print(json.dumps([asdict(gpu) for gpu in _nvml_gpus()]))
