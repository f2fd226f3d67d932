"""Implementations: how a workload is computed. Most are files of ``kernels/<op>/``, and some of this folder."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from runner.device.processes import ROOT
from runner.experiment import schema
from runner.experiment.case import ARGS, WORKTREE, Choice, Scalar
from runner.experiment.schema import CONF, BadInput, choices
from runner.implementations import arguments
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from runner.timing import Call

Argument = bool | int | float | str
KERNELS = ROOT / "runner" / "kernels"
CALL = re.compile(r"^(\w+\(.*\)) -> \w+$", re.MULTILINE)  # in the docstring of kernels.<op>
COMPILES = re.compile(r"^\s*(import|from) (triton|torch\.utils\.cpp_extension)\b", re.MULTILINE)


def build(choice: Choice) -> Implementation:
    """Return the implementation of ``choice``. Raises BadInput if its fields do not fit its class."""
    cls = kind(choice)
    fields: dict[str, Any] = dict.fromkeys(_optional(cls))
    fields |= {name: value for name, value in choice.fields.items() if not name.startswith(ARGS)}
    if "args" in schema.rules_of(cls):
        fields["args"] = _arguments(fields.get("args")) | choice.arguments
    return schema.build(cls, fields, "impl")


def _optional(cls: type[Implementation]) -> list[str]:
    """Return the fields that a case leaves out if they are null: they were added later, and its key stays the same."""
    return [one.name for one in dataclasses.fields(cls) if one.default is None]  # type: ignore[arg-type]  # a dataclass


def _arguments(given: object) -> dict[str, Any]:
    """Return the arguments in a YAML's ``args``, without those that are null: they have their defaults.

    Raises BadInput if one is no single value.
    """
    if not isinstance(given, Mapping | None):
        raise BadInput(f"impl.args: {given!r} is not allowed; give an argument by its name, as in impl.args.BLOCK=64")
    found = {str(name): value for name, value in (given or {}).items() if value is not None}
    for name, value in found.items():
        if isinstance(value, list):
            swept = ",".join(map(str, value))
            raise BadInput(f"impl.args.{name}: {value} is not allowed; to sweep: impl.args.{name}={swept} -m")
        if not isinstance(value, Argument) or (isinstance(value, float) and not isfinite(value)):
            raise BadInput(f"impl.args.{name}: {value!r} is not allowed; give a finite number, true, false or a word")
    return found


def checked(choice: Choice) -> Choice:
    """Return ``choice`` with its fields checked, as a case records it.

    A revision is recorded with its commit, and its files are written. The working tree's is left out: a case of it
    is the same as before there were revisions. Raises BadInput.
    """
    implementation = build(choice)
    fields = schema.record(implementation)
    fields |= {f"{ARGS}{name}": value for name, value in sorted(fields.pop("args", {}).items())}
    fields = {name: v for name, v in fields.items() if v is not None or name not in _optional(type(implementation))}
    rev = fields.pop("rev", None)
    if rev in (None, WORKTREE):
        return Choice(choice.name, fields)
    from runner.implementations import revisions

    place = implementation.revised()
    if place is None:
        raise BadInput(f"impl.rev={rev}: {_labelled(choice)} has no revisions here; leave impl.rev out")
    recorded = revisions.resolve(rev, place)
    revisions.snapshot(recorded, place)
    return Choice(choice.name, {**fields, "rev": recorded})


def _labelled(choice: Choice) -> str:
    of = choice.fields.get("of")
    return f"{choice.name}(of={of})" if of else choice.name


def kind(choice: Choice) -> type[Implementation]:
    """Return the class of the implementation of ``choice``.

    A choice with a ``path`` and a name that no implementation has is a user's function under a name of its own:
    ``impl=file``.
    """
    named = "path" in choice.fields and choice.name not in names()
    try:
        return find("file" if named and not schema.exists("runner.implementations", choice.name) else choice.name)
    except LookupError as error:
        raise BadInput(f"impl={choice.name}: {error}") from None


def find(name: str) -> type[Implementation]:
    """Return the class of ``impl=<name>``: that of a file of this folder, else ``Kernel``, for ``kernels/<op>/``."""
    if schema.exists("runner.implementations", name):
        return schema.find("runner.implementations", name)
    return kernel(name)


def language(name: str) -> str:
    """Return how the name of a user's file ends that ``impl=<name>`` takes as its ``path``."""
    return kind(Choice(name, {"path": None})).LANGUAGE


@cache
def names() -> list[str]:
    """Return the names of the implementations in ``kernels/``, of all operations."""
    return sorted({path.stem for path in KERNELS.glob("*/[!_]*.py")})


@cache
def defaults() -> dict[str, Choice]:
    """Return all implementations by name, with the fields of their YAML files. A kernel may have none."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CONF.glob("impl/*.yaml")]
    plain = {name: Choice(name, {"rev": None}) for name in names()}
    return plain | {one["name"]: Choice.from_record(one) for one in files}


def call_line(op: str) -> str:
    """Return how ``op`` calls a function, as in ``gelu(x, *, form)``; "" if ``kernels/<op>`` does not say."""
    text = import_module(f"runner.kernels.{op}").__doc__ if schema.exists("runner.kernels", op) else None
    line = CALL.search(text or "")
    return re.sub(r", \w+=\w+", "", line[1]).replace(", *)", ")") if line else ""  # no workload sets a default


def as_function(function: Callable[..., Tensor]) -> types.FunctionType:
    """Return ``function`` as a plain Python function: a wrapper if it is a module, a builtin, a script or a partial.

    The wrapper has the signature of a module's ``forward``. A builtin shows none: the wrapper then takes tensors only.
    """
    if isinstance(function, types.FunctionType):
        return function

    def call(*tensors: Tensor, **options: object) -> Tensor:
        return function(*tensors, **options)

    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except ValueError:
        signature = inspect.Signature([inspect.Parameter("tensors", inspect.Parameter.VAR_POSITIONAL)])
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature reads it
    return call  # type: ignore[return-value]  # mypy does not know that a def makes a FunctionType


# Types of kernels that run in Python on the CPU, and what runs them.
INTERPRETED = {"InterpretedFunction": "Triton's interpreter", "FakeCUDAKernel": "Numba's simulator"}


def under_interpreter(module: str) -> str:
    """Return why kernels of the loaded ``module`` cannot be timed: they run in Python on the CPU; "" if they do not.

    Their results can be checked, but their times mean nothing.
    """
    for member in vars(sys.modules[module]).values():
        while type(member).__name__ in ("Autotuner", "Heuristics"):  # decorators of Triton, with the kernel inside
            member = getattr(member, "fn", None)
        if by := INTERPRETED.get(type(member).__name__):
            return f"correct under {by}; a time there would say nothing about a GPU"
    return ""


@dataclass
class FirstCalls:
    """Report of an implementation about its first calls."""

    metrics: dict[str, Scalar] = field(default_factory=dict)  # by runner.experiment.columns.COLUMNS
    fallback: str = ""  # why it did not run as asked, in one sentence; "" if it did


class Implementation(ABC):
    """Base of all implementations. Fields are those of the YAML. Only ``load`` and later methods may import torch."""

    CHECKED: ClassVar[bool] = True  # False: its outputs are not those of the workload, so it is never the fastest
    LANGUAGE: ClassVar[str] = ".py"  # how a user's file ends, if it has a field ``path``

    def missing(self, op: str) -> str:
        """Return why this implementation of ``op`` cannot exist, without loading anything; "" if it can."""
        return ""

    def revised(self) -> Path | None:
        """Return a path in the git repository whose revisions its field ``rev`` names; None if it has no revisions."""
        return None

    def sources(self, op: str) -> list[Path]:
        """Return the files that define it for ``op``, whether or not they exist. Their imports are found elsewhere."""
        return [Path(inspect.getfile(type(self)))]

    @abstractmethod
    def load(self, op: str) -> Callable[..., Tensor]:
        """Return the function, which takes the workload's tensors, and its options by name. Raises Unsupported."""

    def arguments(self, op: str) -> list[str]:
        """Return the arguments of its function for ``op`` that its field ``args`` may give, and options of ``op``."""
        return []

    def kept_on_disk(self, op: str) -> bool:
        """Return whether building it for ``op`` compiles code that a cache on disk keeps for the next process."""
        return False

    def untimed(self, op: str) -> str:
        """Return why a time of it would mean nothing, once it is loaded; "" if it can be timed."""
        return ""

    def wrap_call(self, call: Call, device: str) -> Call:
        """Return the call to time instead of ``call``: the function bound to its inputs, with its work.

        Raises Unsupported.
        """
        return call

    def first_calls(self, op: str, device: str) -> AbstractContextManager[FirstCalls]:
        """Return a context for the first calls of ``op`` on ``device`` ("cpu" or "cuda"), once it is loaded."""
        return nullcontext(FirstCalls())


@dataclass(frozen=True)
class Kernel(Implementation):
    """The implementation ``name`` of any operation: ``kernels/<op>/<name>.py``."""

    name: ClassVar[str]
    args: Mapping[str, Argument] = field(default_factory=dict, kw_only=True)  # keyword arguments of the function
    rev: str | None = field(default=None, kw_only=True)  # git revision of ``kernels/``; None: the working tree

    def revised(self) -> Path | None:
        """Return ``kernels/``, unless the YAML has no field ``rev``: PyTorch's own operators have no revisions here."""
        return KERNELS if "rev" in defaults()[self.name].fields else None

    @property
    def kernels(self) -> Path:
        """The folder ``kernels/`` of the revision. Raises BadInput if git has it no more."""
        if self.rev in (None, WORKTREE):
            return KERNELS
        from runner.implementations import revisions

        return revisions.snapshot(str(self.rev), KERNELS).place(KERNELS.resolve())

    def module(self, name: str) -> str:
        """Return the full name of the module ``name`` of ``kernels/``, such as ``gelu.triton``, of the revision."""
        if self.rev in (None, WORKTREE):
            return f"runner.kernels.{name}"
        from runner.implementations import loader

        return f"{loader.kernels(self.kernels)}.{name}"

    def missing(self, op: str) -> str:
        """Return "" if there is a file for ``op``."""
        if self.rev in (None, WORKTREE):
            there = schema.exists(f"runner.kernels.{op}", self.name)
            return "" if there else f"there is no kernels/{op}/{self.name}.py"
        from runner.implementations import revisions

        there = self._file(op).is_file()
        return "" if there else f"there is no kernels/{op}/{self.name}.py in {revisions.shown(str(self.rev))}"

    def _file(self, op: str) -> Path:
        return self.kernels / op / f"{self.name}.py"

    def sources(self, op: str) -> list[Path]:
        """Return ``kernels/<op>/<name>.py``; nothing of a revision, since its files never change."""
        return [self._file(op)] if self.rev in (None, WORKTREE) else []

    def arguments(self, op: str) -> list[str]:
        """Return the keyword arguments of the function in ``kernels/<op>/<name>.py`` that are no fields of the YAML."""
        own = schema.rules_of(type(self))
        return [name for name in arguments.of_function(self._file(op), op) if name not in own]

    def kept_on_disk(self, op: str) -> bool:
        """Return whether the file imports Triton or the builder of C++ extensions."""
        source = self._file(op)
        return source.is_file() and COMPILES.search(source.read_text(encoding="utf-8")) is not None

    def load(self, op: str) -> Callable[..., Tensor]:
        """Return the function called ``op`` in that file, with its arguments ``args``.

        Raises Unsupported if a package it needs is missing, or the function lacks one of the arguments.
        """
        if why := self.missing(op):
            raise Unsupported(why)
        if self.args and (lacking := self.args.keys() - set(self.arguments(op))):
            raise Unsupported(f"{op} of this {self.name} has no argument {', '.join(sorted(lacking))}")
        try:
            module = import_module(self.module(f"{op}.{self.name}"))
        except ModuleNotFoundError as error:
            raise Unsupported(f"{self.name} needs the package {error.name}; install it to run this") from error
        function: Callable[..., Tensor] = getattr(module, op)
        return functools.partial(function, **self.args) if self.args else function

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Report what the file's ``chosen()`` returns after the first calls, if it has that function."""
        report = FirstCalls()
        yield report
        if chosen := getattr(sys.modules[self.module(f"{op}.{self.name}")], "chosen", None):
            report.metrics["config"] = chosen()

    def untimed(self, op: str) -> str:
        """Return why it cannot be timed where Triton's interpreter or Numba's simulator runs it."""
        return under_interpreter(self.module(f"{op}.{self.name}"))


@cache
def kernel(name: str) -> type[Kernel]:
    """Return the class of the implementation ``name`` of ``kernels/``."""
    return type("Kernel", (Kernel,), {"name": name})


@dataclass(frozen=True)
class Wrapper(Implementation):
    """An implementation that runs another one, ``of``, in its own way."""

    of: str  # a name, or file.py:function
    rev: str | None = field(default=None, kw_only=True)  # git revision of ``of``; None: the working tree

    EXCLUDED: ClassVar[tuple[str, ...]]  # names that ``of`` may not be, beside "file" and "copy"

    def __post_init__(self) -> None:
        allowed = defaults().keys() - {"file", "copy", *self.EXCLUDED}
        if ":" in self.of:
            try:
                assert self.inner
            except BadInput as error:
                raise ValueError(f"of: {str(error).removeprefix('impl.path: ')}") from None
        elif self.of not in allowed:
            raise ValueError(f"of: no implementation {self.of!r} to wrap; {choices(self.of, allowed)}")

    @cached_property
    def inner(self) -> Implementation:
        """The implementation ``of``, with the fields of its YAML file."""
        choice = Choice("file", {"path": self.of}) if ":" in self.of else defaults()[self.of]
        return build(choice if self.rev is None else Choice(choice.name, {**choice.fields, "rev": self.rev}))

    def revised(self) -> Path | None:
        """Return what the wrapped implementation returns."""
        return self.inner.revised()

    def missing(self, op: str) -> str:
        """Return why the wrapped implementation is missing; "" if it exists."""
        return self.inner.missing(op)

    def sources(self, op: str) -> list[Path]:
        """Return the source files of the wrapper and of the wrapped implementation."""
        return [*super().sources(op), *self.inner.sources(op)]

    def untimed(self, op: str) -> str:
        """Return why the wrapped implementation cannot be timed; "" if it can."""
        return self.inner.untimed(op)
