"""The state of a worker's process that its cases share: changes of it by a case, and threads left computing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..device.files import text_in
from ..implementations import scripts, shared_classes
from ..timing import ranks
from ..timing.clock import sleep
from ..timing.cpu import TASKS, scheduled_s
from ..timing.unpatched import replaced_methods

# Functions that built-in implementations, workloads and instruments call, and that a case may have replaced.
FUNCTIONS: dict[str, tuple[object, str]] = {
    "torch": (torch, "add addmm cat cdist equal erf exp matmul mm relu split tanh tensor view_as_real"),
    "torch.nn.functional": (torch.nn.functional, "gelu linear relu softmax"),
    "torch.cuda": (torch.cuda, "Event synchronize"),
    "time": (time, "perf_counter sleep"),
}
REPLACEABLE = {f"{path}.{name}": (owner, name) for path, (owner, names) in FUNCTIONS.items() for name in names.split()}
METHOD = "torch.Tensor."  # begins the names of methods; each attribute of that class is watched
SHARED = "the method "  # likewise, of classes of a user's file that its reference shares with its implementations
MODE = "the floating-point mode of the CPU"
NUMERIC = (MODE, "torch.get_default_dtype", "the stack of torch function modes", "the stack of torch dispatch modes")
LOOKS, LOOK_S = 10, 0.005  # OpenMP's threads wait for up to some ms without sleeping
BUSY = 0.5  # share of each look


@dataclass(frozen=True)
class ProcessState:
    """State of the process that later cases depend on."""

    values: Mapping[str, object]  # functions and settings, by name
    kernels: frozenset[str]  # registered for torch's own operators, such as ``aten/sub.Tensor/CPU``

    def changes_since(self, before: ProcessState) -> list[str]:
        """Return the names of the differences from ``before``, as the end of the sentence "it changed ..."."""
        changed = self._changed_values(before)
        if kernels := sorted(self.kernels ^ before.kernels):
            library, operator, key = kernels[0].split("/")
            more = f" and {len(kernels) - 1} more" if len(kernels) > 1 else ""
            changed.append(f"the kernel of {library}::{operator} ({key}){more}")
        return changed

    def computes_otherwise(self, before: ProcessState) -> bool:
        """Return whether torch or a reference may compute other numbers than ``before``.

        Then this process cannot judge outputs.
        """
        names = self._changed_values(before)
        functions = [name for name in names if name in REPLACEABLE and name.startswith("torch")]
        changed = [*functions, *(name for name in names if name in NUMERIC or name.startswith((METHOD, SHARED)))]
        return bool(changed) or self.kernels != before.kernels

    def _changed_values(self, before: ProcessState) -> list[str]:
        return [name for name, value in self.values.items() if value != before.values.get(name)]


def read_state() -> ProcessState:
    """Return the state of this process, in 0.1 ms and without starting CUDA."""
    functions = {path: getattr(owner, name, None) for path, (owner, name) in REPLACEABLE.items()}
    functions |= {f"{METHOD}{name}": vars(torch.Tensor).get(name, "deleted") for name in replaced_methods()}
    functions |= {f"{SHARED}{name}": "replaced" for name in shared_classes.replaced_methods()}
    return ProcessState(functions | settings(), _registered_kernels(len(torch.library._impls)))


@lru_cache(maxsize=1)
def _registered_kernels(count: int) -> frozenset[str]:
    """Return the kernels that Python code has registered for torch's own operators; ``count``: of all operators.

    Those of the key Meta compute no numbers. torch registers its own of vmap, which only vmap uses, at the first use.
    """
    names: set[str] = torch.library._impls
    apart = ("/Meta", "/FuncTorchBatched", "/FuncTorchBatchedDecomposition")
    return frozenset(name for name in names if name.startswith("aten/") and not name.endswith(apart))


def settings() -> dict[str, object]:
    """Return the values of the settings of this process, by name."""
    return {
        **scripts.read(scripts.settings()),
        "torch.get_num_interop_threads": torch.get_num_interop_threads(),
        MODE: sys.float_info.min / 2 != 0,  # whether it keeps denormal numbers
        "the variable TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET"),
        "the default group of torch.distributed": ranks.group is None or ranks.group is torch.distributed.group.WORLD,
        "torch.is_inference_mode_enabled": torch.is_inference_mode_enabled(),
        "the stack of torch function modes": torch._C._len_torch_function_stack(),  # entered and not left
        "the stack of torch dispatch modes": torch._C._len_torch_dispatch_stack(),
    }


def computing(threads: Set[int]) -> list[str]:
    """Return the names of the ``threads``, given by id, that were computing at each of several looks."""
    for _ in range(LOOKS):
        if not threads:
            return []
        before = {thread: _wanted_s(thread) for thread in threads}
        sleep(LOOK_S)
        busy = {thread for thread in threads if _wanted_s(thread) - before[thread] > BUSY * LOOK_S}
        # On a busy machine, a runnable thread may get no core for the whole of a look.
        threads = busy | {x for x in threads if text_in(TASKS / f"{x}/stat").rpartition(")")[2].split()[:1] == ["R"]}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return sorted(names.get(thread) or text_in(TASKS / f"{thread}/comm").strip() or str(thread) for thread in threads)


def _wanted_s(thread: int) -> float:
    """Return the seconds in which ``thread`` ran or, as far as Linux has counted them, waited for a core."""
    return scheduled_s(thread, 0) + scheduled_s(thread, 1)
