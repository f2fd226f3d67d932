"""A user's own function, from a file outside this repository."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.implementations import FirstCalls, Implementation, as_function, call_line, loader, under_interpreter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class File(Implementation):
    """``path`` is ``folder/my_softmax.py:softmax``; the file is run as any Python module is when imported."""

    path: str | None

    def __post_init__(self) -> None:
        if self.path is None:
            raise ValueError("path: missing; say which function, as in impl.path=my_softmax.py:softmax")
        if not self.path.rpartition(":")[0] or not self._name.isidentifier():
            raise ValueError(f"path: {self.path!r} names no function; write impl.path=my_softmax.py:softmax")
        if self._file.suffix != ".py":
            raise ValueError(f"path: {self._file} is no Python file; write impl.path=my_softmax.py:softmax")
        if not self._file.is_file():
            raise ValueError(f"path: there is no file {self._file}; give a path that exists, seen from {Path.cwd()}")

    @property
    def _file(self) -> Path:
        return Path(str(self.path).rpartition(":")[0])

    @property
    def _name(self) -> str:
        return str(self.path).rpartition(":")[2]

    def sources(self, op: str) -> list[Path]:
        """Return the source file of this class and the user's own."""
        return [*super().sources(op), self._file]

    def load(self, op: str) -> Callable[..., Tensor]:
        """Return the function; its file may import files beside it. Raises AttributeError if the file lacks it."""
        module = loader.load(self._file, self._file.parent)
        if not hasattr(module, self._name):
            defined = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
            raise AttributeError(f"{self._file} defines no function {self._name}; it defines: {defined}")
        return as_function(getattr(module, self._name))

    def untimed(self, op: str) -> str:
        """Return why it cannot be timed where Triton's interpreter runs a kernel of the file."""
        return under_interpreter(loader.module_name(self._file, self._file.parent))

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Add to a TypeError how ``op`` calls the function, if the arguments did not fit it."""
        try:
            yield FirstCalls()
        except TypeError as error:
            began = any(
                frame.f_code.co_filename == str(self._file) for frame, _ in traceback.walk_tb(error.__traceback__)
            )
            if not began and (line := call_line(op)):
                text = f"workload={op} calls {line}; an option after * is left out if the signature does not name it"
                error.args = (f"{error}: {text}; docs/groups/workload.md has the shapes",)
            raise
