"""Debugging modes of a case, and the environment variables that they set."""

import os
from collections.abc import Mapping
from typing import Literal

Aid = Literal[
    "launch_blocking",  # wait for each kernel, so that a fault is raised where it was launched
    "interpret",  # run Triton and Numba kernels as Python, on the CPU
    "sanitizer",  # run the case under compute-sanitizer too, before it is checked
    "anomaly",  # let autograd name the operation whose backward makes NaN
]
Device = Literal["auto", "cpu", "cuda"]
DEBUG_ENVIRONMENT: Mapping[str | None, Mapping[str, str]] = {  # for the workers of such cases, before they import torch
    "launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},  # read when CUDA starts
    # read when a kernel is decorated, Triton's own among them, and when Numba is imported
    "interpret": {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"},
}

# Of the workers of cases under deterministic_algorithms=true, before cuBLAS starts: else torch refuses its products
DETERMINISTIC_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def interpreted() -> bool:
    """Return whether Triton kernels run as Python in this process, those of the runner's timer included."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_under(aid: Aid | None, device: Device) -> Device:
    """Return the ``device`` of cases with ``aid``: for the interpreter, auto is the CPU."""
    return "cpu" if aid == "interpret" and device == "auto" else device


def useless_debug(aid: str | None, device: str) -> str:
    """Say why ``aid`` finds nothing on ``device`` (auto | cpu | cuda), and what to type; "" if it can find faults."""
    if aid == "interpret" and device != "cpu":
        return f"interpret runs Triton and Numba kernels on the CPU; leave out device={device}"
    if aid in ("launch_blocking", "sanitizer") and device == "cpu":
        return f"{aid} looks at kernels on a GPU; leave out device=cpu, on a machine that has one"
    return ""
