"""Turns exceptions into statuses."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from runner.experiment.results import Phase, Status, clip, printable
from runner.kernels.unsupported import Unsupported

OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")
NO_SUCH_KERNEL = re.compile(  # the last under deterministic_algorithms=true
    r"not implemented for|not supported for|unsupported dtype|does not have a deterministic implementation",
    re.IGNORECASE,
)
LONGEST = 800, 200  # characters of a reason, from its beginning and from its end
COMPILERS = (
    "torch._dynamo",
    "torch._inductor",
    "triton.compiler",
    "triton.runtime.errors",
    "torch.utils.cpp_extension",
)


@dataclass(frozen=True)
class Fault:
    """The failure of a case. A spoiled process must not run another case: its CUDA context is lost."""

    status: Status
    reason: str  # one line
    spoiled: bool = False


def classify(error: BaseException, phase: Phase) -> Fault:
    """Return the fault behind ``error``, which was raised in ``phase``."""
    message = str(error)
    text = next((line.strip() for line in message.splitlines() if line.strip()), "")
    name = type(error).__name__  # anything but one line, if the case has made the class
    reason = printable(clip(f"{name}: {text}" if text else name, *LONGEST))
    if isinstance(error, Unsupported):
        return Fault("unsupported", printable(clip(text, *LONGEST)) or "unsupported")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(message):
        return Fault("oom", reason)
    if "CUDA error" in text or name == "AcceleratorError":
        return Fault("cuda_error", reason, spoiled=True)
    if isinstance(error, NotImplementedError) or (isinstance(error, RuntimeError) and NO_SUCH_KERNEL.search(text)):
        return Fault("unsupported", reason)
    compiler = type(error).__module__.startswith(COMPILERS) or name == "BuildFailed"  # of kernels/, of any revision
    if phase == "build" and (compiler or isinstance(error, SyntaxError | ImportError | AttributeError)):
        return Fault("build_failed", reason)
    return Fault("error", reason)
