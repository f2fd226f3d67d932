"""CUDA C++: ``kernels/<op>/cuda.py`` and the ``.cu`` files next to it, with a choice of builder and variant."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from ..kernels.cuda_sources import DEFAULT, variants
from ..records.bad_input import choices
from . import KERNELS, FirstCalls, Function, Kernel, build_metrics


@dataclass(frozen=True)
class Cuda(Kernel):
    """``build`` and ``variant`` are keyword arguments of the function in ``kernels/<op>/cuda.py``."""

    name = "cuda"
    build: Literal["nvrtc", "extension"]
    variant: str

    def __post_init__(self) -> None:
        if self.rev:
            return  # ``missing`` checks a revision for each operation
        every = dict.fromkeys([DEFAULT, *(name for folder in sorted(KERNELS.glob("*/")) for name in variants(folder))])
        if self.variant not in every:
            raise ValueError(f"variant: no such variant {self.variant!r}; {choices(self.variant, every)}")

    def missing(self, op: str) -> str:
        """Return "" if there is a ``kernels/<op>/cuda.py`` with this variant."""
        if reason := super().missing(op):
            return reason
        if self.variant in (available := variants(self.kernels / op)):
            return ""
        return f"kernels/{op} has no variant {self.variant}; it has {', '.join(available)}"

    def sources(self, op: str) -> list[Path]:
        """Return the source files of this class, of the function, which imports the builders, and of the variant."""
        source = variants(self.kernels / op).get(self.variant)
        files = super().sources(op)
        return [Path(__file__), *files, *([source] if source and files else [])]

    def kept_on_disk(self, op: str) -> bool:
        """Return True if the operation has a kernel in CUDA C++: both builders keep compiled code."""
        return not self.missing(op)

    def load(self, op: str) -> Function:
        """Return the function. It builds its kernel when it is first called."""
        return functools.partial(super().load(op), build=self.build, variant=self.variant)

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Report the seconds of building, and whether all code was found on disk."""
        builds = import_module(self.module("cuda_build")).builds
        report, before = FirstCalls(), len(builds)
        yield report
        report.metrics |= build_metrics(builds[before:])
