"""An exception → a status, a sentence, and whether the process can still be trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from runner.experiment.errors import BadInput
from runner.experiment.redact import kept
from runner.experiment.results import Phase, Status
from runner.kernels.unsupported import Unsupported

OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")
NO_SUCH_KERNEL = re.compile(r"not implemented for|not supported for|unsupported dtype", re.IGNORECASE)
LONGEST = 800, 200  # characters of a reason, from its beginning and from its end
COMPILERS = (
    "torch._dynamo",
    "torch._inductor",
    "triton.compiler",
    "triton.runtime.errors",
    "torch.utils.cpp_extension",
    "runner.kernels.cuda_kernel",
)


@dataclass(frozen=True)
class Fault:
    """What went wrong. A spoiled process must not run another case: its CUDA context is gone for good."""

    status: Status
    reason: str  # one line
    spoiled: bool = False


def classify(error: BaseException, phase: Phase) -> Fault:
    """The fault behind ``error``, raised in ``phase``."""
    said = _said(error)
    text = next((line.strip() for line in said.splitlines() if line.strip()), "")
    text = "".join(letter if letter.isprintable() else "?" for letter in kept(text, *LONGEST))
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, Unsupported):
        return Fault("unsupported", text or "unsupported")
    if isinstance(error, BadInput):  # what was there when the run began is not any more
        return Fault("build_failed", text)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(said):
        return Fault("oom", reason)
    if "CUDA error" in text or type(error).__name__ == "AcceleratorError":
        return Fault("cuda_error", reason, spoiled=True)
    if isinstance(error, NotImplementedError) or (isinstance(error, RuntimeError) and NO_SUCH_KERNEL.search(text)):
        return Fault("unsupported", reason)
    if phase == "build" and _is_from_a_compiler(error):
        return Fault("build_failed", reason)
    return Fault("error", reason)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as why:  # the class is the user's own
        return f"what it says is not known, for its __str__ raises {type(why).__name__}"


def _is_from_a_compiler(error: BaseException) -> bool:
    return isinstance(error, SyntaxError | ImportError | AttributeError) or type(error).__module__.startswith(COMPILERS)
