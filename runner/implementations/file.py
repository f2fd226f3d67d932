"""A user's own function, from a file outside this repository."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.experiment.case import WORKTREE
from runner.implementations import (
    Argument,
    FirstCalls,
    Implementation,
    arguments,
    as_function,
    call_line,
    loader,
    under_interpreter,
)
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from runner.implementations.revisions import Snapshot


@dataclass(frozen=True)
class File(Implementation):
    """``path`` is ``folder/my_softmax.py:softmax``; the file is run as any Python module is when imported."""

    path: str | None
    args: Mapping[str, Argument] = field(default_factory=dict, kw_only=True)  # keyword arguments of the function
    rev: str | None = field(default=None, kw_only=True)  # git revision of the file; None: the working tree

    def __post_init__(self) -> None:
        if self.path is None:
            raise ValueError("path: missing; say which function, as in impl.path=my_softmax.py:softmax")
        if not self.path.rpartition(":")[0] or not self._name.isidentifier():
            raise ValueError(f"path: {self.path!r} names no function; write impl.path=my_softmax.py:softmax")
        if self._file.suffix != ".py":
            raise ValueError(f"path: {self._file} is no Python file; write impl.path=my_softmax.py:softmax")
        if self.rev in (None, WORKTREE) and not self._file.is_file():
            raise ValueError(f"path: there is no file {self._file}; give a path that exists, seen from {Path.cwd()}")

    @property
    def _file(self) -> Path:
        return Path(str(self.path).rpartition(":")[0])

    @property
    def _name(self) -> str:
        return str(self.path).rpartition(":")[2]

    @cached_property
    def _snapshot(self) -> Snapshot | None:
        """The files of the revision; None: the working tree. Raises BadInput if git has them no more."""
        if self.rev in (None, WORKTREE):
            return None
        from runner.implementations import revisions

        return revisions.snapshot(str(self.rev), self._file)

    @property
    def _source(self) -> Path:
        """The file of the revision."""
        return self._snapshot.place(self._file) if self._snapshot else self._file

    def revised(self) -> Path | None:
        """Return the file, which lies in the user's own repository."""
        return self._file

    def missing(self, op: str) -> str:
        """Return "" if the revision has the file."""
        if self._snapshot is None or self._source.is_file():
            return ""
        from runner.implementations import revisions

        return f"there is no {self._file} in {revisions.shown(str(self.rev))}"

    def sources(self, op: str) -> list[Path]:
        """Return the source file of this class and the user's own, unless that is a revision's, which never changes."""
        return [*super().sources(op), *(() if self._snapshot else (self._file,))]

    def arguments(self, op: str) -> list[str]:
        """Return the keyword arguments of the function, and the meta-parameters of autotuned kernels of its file."""
        own = arguments.of_function(self._source, self._name)
        return list(dict.fromkeys([*own, *arguments.of_autotuned(self._source)]))

    def load(self, op: str) -> Callable[..., Tensor]:
        """Return the function with its arguments ``args``; its file may import files beside it.

        Raises AttributeError if the file lacks the function, and Unsupported if the revision lacks the file, or if
        autotuned kernels have no configuration with these arguments.
        """
        if why := self.missing(op):
            raise Unsupported(why)
        if lacking := self.args.keys() - set(self.arguments(op)):
            raise Unsupported(f"{self._name} in {self._where} has no argument {', '.join(sorted(lacking))}")
        module = loader.load(self._source, self._source.parent, self._snapshot)
        if not hasattr(module, self._name):
            defined = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
            raise AttributeError(f"{self._where} defines no function {self._name}; it defines: {defined}")
        own = arguments.of_function(self._source, self._name)
        if pinned := {name: value for name, value in self.args.items() if name not in own}:
            arguments.pin(module, pinned)
        given = {name: value for name, value in self.args.items() if name in own}
        function = getattr(module, self._name)
        return as_function(partial(function, **given) if given else function)

    @property
    def _where(self) -> str:
        """The file as messages name it."""
        if self._snapshot is None:
            return str(self._file)
        from runner.implementations import revisions

        return f"{self._file} in {revisions.shown(str(self.rev))}"

    def untimed(self, op: str) -> str:
        """Return why it cannot be timed where Triton's interpreter or Numba's simulator runs a kernel of the file."""
        return under_interpreter(loader.module_name(self._source, self._source.parent))

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Add to a TypeError how ``op`` calls the function, if the arguments did not fit it."""
        try:
            yield FirstCalls()
        except TypeError as error:
            began = any(
                frame.f_code.co_filename == str(self._source) for frame, _ in traceback.walk_tb(error.__traceback__)
            )
            if not began and (line := call_line(op)):
                text = f"workload={op} calls {line}; an option after * is left out if the signature does not name it"
                error.args = (f"{error}: {text}; docs/groups/workload.md has the shapes",)
            raise
