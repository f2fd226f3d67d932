"""CUDA C++: ``kernels/<op>/cuda.py`` and the ``.cu`` files beside it, with a choice of builder and variant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.experiment.case import WORKTREE
from runner.experiment.schema import choices
from runner.implementations import KERNELS, FirstCalls, Kernel
from runner.kernels.cuda_sources import DEFAULT, variants

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cuda(Kernel):
    """``build`` and ``variant`` are keyword arguments of the function in ``kernels/<op>/cuda.py``."""

    name = "cuda"
    build: Literal["nvrtc", "extension"]
    variant: str

    def __post_init__(self) -> None:
        if self.rev not in (None, WORKTREE):
            return  # what a revision lacks is said for each operation
        every = dict.fromkeys([DEFAULT, *(name for folder in sorted(KERNELS.glob("*/")) for name in variants(folder))])
        if self.variant not in every:
            raise ValueError(f"variant: no such variant {self.variant!r}; {choices(self.variant, every)}")

    def missing(self, op: str) -> str:
        """Return "" if there is a ``kernels/<op>/cuda.py`` with this variant."""
        if why := super().missing(op):
            return why
        have = variants(self.kernels / op)
        return "" if self.variant in have else f"kernels/{op} has no variant {self.variant}; it has {', '.join(have)}"

    def sources(self, op: str) -> list[Path]:
        """Return the source files of this class, of the function, which imports the builders, and of the variant."""
        own = variants(self.kernels / op).get(self.variant)
        files = super().sources(op)
        return [Path(__file__), *files, *([own] if own and files else [])]

    def kept_on_disk(self, op: str) -> bool:
        """Return True if the operation has a kernel in CUDA C++: both builders keep what they make."""
        return not self.missing(op)

    def load(self, op: str) -> Callable[..., Tensor]:
        """Return the function. It builds its kernel when it is first called."""
        return functools.partial(super().load(op), build=self.build, variant=self.variant)

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Report the seconds of building, and whether everything was found on disk."""
        builds = import_module(self.module("cuda_build")).builds
        report, before = FirstCalls(), len(builds)
        yield report
        mine = builds[before:]
        report.metrics.update(
            compile_s=sum(build.seconds for build in mine), compile_cached=all(build.cached for build in mine)
        )
