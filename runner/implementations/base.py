"""What every implementation can do."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runner.experiment.case import Scalar

if TYPE_CHECKING:
    from torch import Tensor

    from runner.models.workload import Call


@dataclass
class Watch:
    """What an implementation noticed about itself while it was first called."""

    metrics: dict[str, Scalar] = field(default_factory=dict)  # by runner.experiment.columns.COLUMNS
    fallback: str = ""  # why it did not run as asked, in one sentence; empty if it did


def under_interpreter(module: str) -> str:
    """Why a time of the kernels of a loaded ``module`` says nothing: Triton's interpreter runs them. Empty if not.

    It does so in Python, on the CPU: right or wrong, but never fast or slow.
    """
    interpreter = sys.modules.get("triton.runtime.interpreter")
    members = vars(sys.modules[module]).values()
    if interpreter and any(isinstance(_kernel(member), interpreter.InterpretedFunction) for member in members):
        return "correct under Triton's interpreter; a time there would say nothing about a GPU"
    return ""


def _kernel(member: object) -> object:
    """What ``triton.autotune`` and ``triton.heuristics`` have wrapped, or ``member`` itself."""
    autotuner = sys.modules["triton.runtime.autotuner"]
    while isinstance(member, (autotuner.Autotuner, autotuner.Heuristics)):
        member = member.fn
    return member


class Implementation(ABC):
    """Fields are those of its YAML. Nothing here imports torch before ``load``."""

    def missing(self, op: str) -> str:
        """Why this cannot exist for ``op``, known without loading anything; empty if it can."""
        return ""

    def sources(self, op: str) -> list[Path]:
        """The files that make it what it is for ``op``, there or not; those which they import follow from them."""
        return [Path(inspect.getfile(type(self)))]

    @abstractmethod
    def load(self, op: str) -> Callable[..., Tensor]:
        """The function, ready to be called with the workload's tensors and options.

        Raises:
            kernels.Unsupported: it does not exist for this operation or on this machine.

        """

    def kept_on_disk(self, op: str) -> bool:
        """Whether building it for ``op`` compiles what a cache on disk keeps for the next process."""
        return False

    def untimed(self, op: str) -> str:
        """Why a time of it would say nothing, after ``load``; empty if it can be timed."""
        return ""

    def around(self, call: Call, device: str) -> Call:
        """What is called instead of ``call``, which is the function bound to the inputs on ``device``: by default that.

        Raises:
            kernels.Unsupported: there is nothing to be called instead, on this device.

        """
        return call

    def watching(self, op: str, device: str) -> AbstractContextManager[Watch]:
        """Entered around the first calls of ``op`` on ``device`` ("cpu" or "cuda"), after ``load``."""
        return nullcontext(Watch())
