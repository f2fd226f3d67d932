"""Aids for finding a fault in an implementation: each changes how a case runs, so that its times are not its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

Aid = Literal[
    "launch_blocking",  # each kernel is waited for, so that a fault is raised where it was launched
    "interpret",  # Triton kernels run as Python, on the CPU
    "sanitizer",  # the case once more under compute-sanitizer, before it is checked
    "anomaly",  # autograd names the operation whose backward makes NaN
]
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {  # of the processes in which such cases run, before they import torch
    "launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},  # read when CUDA starts
    "interpret": {"TRITON_INTERPRET": "1"},  # read when a kernel is decorated, Triton's own among them
}
VERDICT = "debug"


def environment(aid: str | None) -> Mapping[str, str]:
    """What ``aid`` wants in the environment of a process from its beginning."""
    return ENVIRONMENT.get(aid or "", {})


def interpreted() -> bool:
    """Whether Triton kernels run as Python in this process, the runner's own timestamps and spins among them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def useless(aid: str | None, device: str) -> str:
    """Why ``aid`` can find nothing on ``device`` (auto | cpu | cuda), and what to type; "" if it can."""
    if aid == "interpret" and device != "cpu":
        return "interpret runs Triton kernels on the CPU; add device=cpu"
    if aid in ("launch_blocking", "sanitizer") and device == "cpu":
        return f"{aid} looks at kernels on a GPU; leave out device=cpu, on a machine that has one"
    return ""
