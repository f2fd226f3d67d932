"""A user's own function, from a file outside this repository."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.implementations import Implementation, Watch, arguments, loader, under_interpreter

if TYPE_CHECKING:
    from torch import Tensor

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class File(Implementation):
    """``path`` is ``folder/my_softmax.py:softmax``; the file is run as any Python module is when imported."""

    path: str | None

    def __post_init__(self) -> None:
        if self.path is None:
            raise ValueError("path: missing; say which function, as in impl.path=my_softmax.py:softmax")
        file, colon, function = self.path.rpartition(":")
        if not colon or not function.isidentifier():
            raise ValueError(f"path: {self.path!r} names no function; write impl.path=my_softmax.py:softmax")
        if Path(file).suffix != ".py":
            raise ValueError(f"path: {file} is no Python file; write impl.path=my_softmax.py:softmax")
        if not Path(file).is_file():
            raise ValueError(f"path: there is no file {file}; give a path that exists, seen from {Path.cwd()}")

    def sources(self, op: str) -> list[Path]:
        """Return the source file of this wrapper and the user's own."""
        assert self.path is not None
        return [*super().sources(op), Path(self.path.rpartition(":")[0])]

    def load(self, op: str) -> Callable[..., Tensor]:
        """The function. It gets the workload's tensors, and those options that its signature names after them.

        Its file may import what lies beside it, see ``runner.implementations.loader``.

        Raises:
            AttributeError: the file defines no such function.

        """
        assert self.path is not None
        file, _, name = self.path.rpartition(":")
        module = loader.load(Path(file), Path(file).parent)
        if not hasattr(module, name):
            defined = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
            raise AttributeError(f"{file} defines no function {name}; it defines: {defined}")
        return _only_named_options(getattr(module, name))

    def untimed(self, op: str) -> str:
        """Where Triton's interpreter runs a kernel of the file."""
        return under_interpreter(self._module)

    @contextmanager
    def watching(self, op: str, device: str) -> Iterator[Watch]:
        """Has a TypeError say what ``op`` gives its function, if that function takes other arguments."""
        assert self.path is not None
        name = self.path.rpartition(":")[2]
        try:
            yield Watch()
        except TypeError as error:
            function, given = getattr(sys.modules[self._module], name), arguments(op)
            if given is None or not _is_of_the_call(error, function):
                raise
            also = f"; and {' and '.join(given.options)}, if its signature names it" if given.options else ""
            text = f"{error}: workload={op} calls it as {name}({given.tensors}) with {given.shapes}{also}"
            raise TypeError(text).with_traceback(error.__traceback__) from None

    @property
    def _module(self) -> str:
        """Its file's name among the loaded modules."""
        assert self.path is not None
        file = Path(self.path.rpartition(":")[0])
        return loader.module_name(file, file.parent)


def _is_of_the_call(error: TypeError, function: object) -> bool:
    """Whether the arguments did not fit ``function``, a plain one: it then never began to run."""
    began = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return inspect.isfunction(function) and function.__code__ not in began


def _only_named_options(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    parameters = _parameters(function)
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    in_order = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
    if every and not in_order:
        return function

    @functools.wraps(function)
    def call(*tensors: Tensor, **options: object) -> Tensor:
        taken = in_order[: len(tensors)]  # by the tensors, whatever they are called: cdist's may be p and q
        free = {name: value for name, value in options.items() if (every or name in named) and name not in taken}
        return function(*tensors, **free)

    return call


def _parameters(function: Callable[..., Tensor]) -> list[inspect.Parameter]:
    """Those of ``function``, of its ``forward`` if it is a module, or none if it tells of none, as builtins do."""
    try:
        return list(inspect.signature(getattr(function, "forward", function)).parameters.values())
    except ValueError:
        return []
