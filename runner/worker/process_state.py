"""The state of a worker's process that its cases share, and what a case has changed of it."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")

# What built-in implementations, workloads and instruments call: if a case replaces one, later results or times differ.
FUNCTIONS: dict[str, tuple[object, str]] = {
    "torch": (torch, "add addmm cat cdist equal erf exp matmul mm relu split tanh"),
    "torch.nn.functional": (torch.nn.functional, "gelu linear relu softmax"),
    "torch.Tensor": (
        torch.Tensor,
        "__add__ __matmul__ __mul__ __sub__ __truediv__ abs amax backward clone copy_ double exp mean sqrt sum to",
    ),
    "torch.cuda": (torch.cuda, "Event synchronize"),
    "time": (time, "perf_counter sleep"),
}
LIMITS = {  # number → name; of two names of one limit, RLIMIT_NOFILE and RLIMIT_OFILE, the first
    getattr(resource, name): name for name in reversed(dir(resource)) if name.startswith("RLIMIT_")
}
TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
MOST_FILES = 200  # more files that a case leaves open: a process may often have 1024, and libraries open some


@dataclass(frozen=True)
class ProcessState:
    """What later cases depend on. ``changes_since`` tells what a case has changed."""

    values: Mapping[str, object]  # functions, settings of torch, timers, signal handlers
    limits: Mapping[str, float]  # of resources; only a lower one harms
    open_files: float  # infinite if there is no room to count them

    def changes_since(self, before: ProcessState) -> list[str]:
        """Return the names of what differs from ``before``, as the end of the sentence "it changed ..."."""
        changed = [name for name, value in self.values.items() if value != before.values[name]]
        changed += [name for name, limit in self.limits.items() if limit < before.limits[name]]
        more = self.open_files > before.open_files + MOST_FILES
        return [*changed, f"the number of open files by more than {MOST_FILES}"] if more else changed


def read_state() -> ProcessState:
    """Return the state of this process. It takes 80 us and starts no CUDA."""
    functions = {
        f"{where}.{name}": getattr(owner, name, None)
        for where, (owner, names) in FUNCTIONS.items()
        for name in names.split()
    }
    timers = {f"the timer {name}": signal.getitimer(getattr(signal, name))[0] > 0 for name in TIMERS}
    handlers = {f"the handler of {number.name}": signal.getsignal(number) for number in signal.Signals}
    soft = {name: resource.getrlimit(number)[0] for number, name in LIMITS.items()}
    limits = {name: math.inf if limit == resource.RLIM_INFINITY else limit for name, limit in soft.items()}
    return ProcessState(functions | settings() | timers | handlers, limits, _open_files())


def settings() -> dict[str, object]:
    """Return the settings of torch and the folder of this process, by name."""
    return {
        "torch.get_num_threads": torch.get_num_threads(),
        "torch.get_default_dtype": torch.get_default_dtype(),
        "torch.get_default_device": torch.get_default_device(),
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled": torch.is_inference_mode_enabled(),
        "torch.is_anomaly_enabled": torch.is_anomaly_enabled(),
        "torch.is_autocast_enabled on the CPU": torch.is_autocast_enabled("cpu"),
        "torch.is_autocast_enabled on the GPU": torch.is_autocast_enabled("cuda"),
        "the stack of torch function modes": torch._C._len_torch_function_stack(),  # modes entered and not left
        "the stack of torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled(),
        "torch.backends.cudnn.enabled": torch.backends.cudnn.enabled,
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        # It raises where convolutions and RNNs differ, since torch 2.9.
        "torch.backends.cudnn.allow_tf32": or_none(lambda: torch.backends.cudnn.allow_tf32),
        "torch.backends.mkldnn.enabled": torch._C._get_mkldnn_enabled(),
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "the working folder": or_none(os.getcwd),  # it raises if the folder was removed
    }


def _open_files() -> float:
    """Return how many descriptors are open: infinite if none is left to count them with, 0 where /dev/fd is missing."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError as error:
        return math.inf if error.errno in (errno.EMFILE, errno.ENFILE) else 0


def or_none(read: Callable[[], T]) -> T | None:
    """Return what ``read`` returns; None if it raises RuntimeError or OSError."""
    with suppress(RuntimeError, OSError):
        return read()
    return None
