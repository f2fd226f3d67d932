"""CUDA C++: ``kernels/<op>/cuda.py`` and the ``.cu`` files beside it, with a choice of builder and variant.

With ``path``, a user's own ``.cu`` file, whose launch a YAML file describes: ``runner.implementations.launch``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.experiment.case import WORKTREE
from runner.experiment.schema import choices
from runner.implementations import KERNELS, FirstCalls, Kernel, call_line
from runner.implementations import launch as launches
from runner.kernels.cuda_sources import DEFAULT, variants
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor


PATH = re.compile(r"(.+\.cu):(\w+)")
EXAMPLE = "impl.path=k.cu:kernel"


@dataclass(frozen=True)
class Cuda(Kernel):
    """``build`` and ``variant`` are keyword arguments of the function in ``kernels/<op>/cuda.py``."""

    name = "cuda"
    LANGUAGE = ".cu"
    build: Literal["nvrtc", "extension"]
    variant: str
    path: str | None = field(default=None, kw_only=True)  # a user's kernel: ``folder/k.cu:kernel``
    launch: str | None = field(default=None, kw_only=True)  # its YAML file; None: the one beside it, ``folder/k.yaml``

    def __post_init__(self) -> None:
        if self.path is not None:
            self._check_path()
        elif self.launch is not None:
            raise ValueError(f"launch: belongs to a .cu file of your own; give that too, as in {EXAMPLE}")
        if self.rev not in (None, WORKTREE):
            return  # what a revision lacks is said for each operation
        every = dict.fromkeys([DEFAULT, *(name for folder in sorted(KERNELS.glob("*/")) for name in variants(folder))])
        if self.variant not in every:
            raise ValueError(f"variant: no such variant {self.variant!r}; {choices(self.variant, every)}")

    def _check_path(self) -> None:
        """Raise ValueError or BadInput unless the user's file and its launch are there and can be read."""
        if not PATH.fullmatch(str(self.path)):
            raise ValueError(
                f"path: {self.path!r} names no kernel in CUDA C++; write {EXAMPLE}, or impl=file for Python"
            )
        if not self._file_of_user.is_file():
            raise ValueError(f"path: there is no file {self._file_of_user}; give a path, seen from {Path.cwd()}")
        if (self.build, self.variant) != ("nvrtc", DEFAULT):
            raise ValueError("path: a file of your own is built by nvrtc; leave impl.build and impl.variant out")
        if self.rev not in (None, WORKTREE):
            raise ValueError("rev: a .cu file of your own has no revisions here; leave impl.rev out")
        assert self._launch

    @property
    def _file_of_user(self) -> Path:
        return Path(str(self.path).rpartition(":")[0])

    @property
    def _launch_file(self) -> Path:
        return Path(self.launch) if self.launch else self._file_of_user.with_suffix(".yaml")

    @cached_property
    def _launch(self) -> launches.Launch:
        return launches.read(self._launch_file)

    def _tensors(self, op: str) -> tuple[list[str], list[str]]:
        """Return the names of the tensors of ``op``, and those of its options; none if its page has no such line."""
        inside = call_line(op).partition("(")[2].rstrip(")")
        tensors, _, options = (part.strip(", ") for part in inside.partition("*"))
        found = [] if "..." in tensors else list(filter(None, tensors.split(", ")))
        return list(self._launch.tensors or found), list(filter(None, options.split(", ")))

    def _missing_of_user(self, op: str) -> str:
        tensors, options = self._tensors(op)
        if not tensors:
            return f"{self._launch_file}: tensors: missing; name those of {op} in order, as in tensors: [x]"
        known = [*tensors, launches.OUTPUT, *options, *self._launch.args]
        unknown = self._launch.unknown(known)
        return f"{self._launch_file}: {unknown}" if unknown else ""

    def revised(self) -> Path | None:
        """Return ``kernels/``; None for a user's file."""
        return None if self.path else super().revised()

    def arguments(self, op: str) -> list[str]:
        """Return the arguments of the function, or those in the launch of a user's file."""
        return list(self._launch.args) if self.path else super().arguments(op)

    def untimed(self, op: str) -> str:
        """Return "" : nothing interprets CUDA C++."""
        return ""

    def missing(self, op: str) -> str:
        """Return "" if there is a ``kernels/<op>/cuda.py`` with this variant, or if the user's launch fits ``op``."""
        if self.path:
            return self._missing_of_user(op)
        if why := super().missing(op):
            return why
        have = variants(self.kernels / op)
        return "" if self.variant in have else f"kernels/{op} has no variant {self.variant}; it has {', '.join(have)}"

    def sources(self, op: str) -> list[Path]:
        """Return the source files of this class, of the function, which imports the builders, and of the variant."""
        if self.path:
            return [Path(__file__), Path(launches.__file__), self._launch_file, self._file_of_user]
        own = variants(self.kernels / op).get(self.variant)
        files = super().sources(op)
        return [Path(__file__), *files, *([own] if own and files else [])]

    def kept_on_disk(self, op: str) -> bool:
        """Return True if the operation has a kernel in CUDA C++: both builders keep what they make."""
        return not self.missing(op)

    def load(self, op: str) -> Callable[..., Tensor]:
        """Return the function. It builds its kernel when it is first called."""
        if self.path:
            if why := self.missing(op):
                raise Unsupported(why)
            name = self._launch.kernel or self.path.rpartition(":")[2]
            tensors, _ = self._tensors(op)
            return launches.function(self._launch, self._file_of_user, name, tensors, self.args)
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
