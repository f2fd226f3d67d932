"""Implementations of workloads: files of ``kernels/<op>/``, wrappers, and functions of a user."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..device.processes import ROOT
from ..kernels.unsupported import Unsupported
from ..records import schema
from ..records.bad_input import BadInput, choices
from ..records.case import ARGS, WORKTREE, Choice, Scalar
from ..records.options import CONF, PACKAGE, has_option, option_class, read_yaml
from ..records.schema import rules_of, to_fields
from ..tasks import own_file
from ..timing.call import Call
from . import arguments, loader, revisions

if TYPE_CHECKING:
    from torch import Tensor

Argument = bool | int | float | str
Function: TypeAlias = "Callable[..., Tensor]"  # takes the tensors of a workload, and its options by name
KERNELS = ROOT / "runner" / "kernels"
CALL = re.compile(r"^(\w+\(.*\)) -> \w+$", re.MULTILINE)  # in the docstring of kernels.<op>
COMPILES = re.compile(r"^\s*(import|from) (triton|torch\.utils\.cpp_extension)\b", re.MULTILINE)


def build(choice: Choice) -> Implementation:
    """Return the implementation of ``choice``. Raises BadInput if its fields do not fit its class."""
    cls = kind(choice)
    fields: dict[str, Any] = dict.fromkeys(_optional(cls))
    fields |= {name: value for name, value in choice.fields.items() if not name.startswith(ARGS)}
    if fields.get("rev") == WORKTREE:
        fields["rev"] = None
    if "args" in rules_of(cls):
        fields["args"] = _arguments(fields.get("args")) | choice.arguments
    return schema.build(cls, fields, "impl")


def _optional(cls: type[Implementation]) -> list[str]:
    """Return the fields that a case leaves out if they are null, so that they do not change its key."""
    return [field.name for field in dataclasses.fields(cls) if field.default is None]  # type: ignore[arg-type]  # a dataclass


def _arguments(args: object) -> dict[str, Any]:
    """Return the arguments in ``args`` of a YAML file, without null values, which stand for the default.

    Raises BadInput if a value is not a finite number, a bool or a string.
    """
    if not isinstance(args, Mapping | None):
        raise BadInput(f"impl.args: {args!r} is not allowed; give an argument by its name, as in impl.args.BLOCK=64")
    values = {str(name): value for name, value in (args or {}).items() if value is not None}
    for name, value in values.items():
        if isinstance(value, list):
            swept = ",".join(map(str, value))
            raise BadInput(f"impl.args.{name}: {value} is not allowed; to sweep: impl.args.{name}={swept} -m")
        if not isinstance(value, Argument) or value == "" or (isinstance(value, float) and not isfinite(value)):
            raise BadInput(f"impl.args.{name}: {value!r} is not allowed; give a finite number, true, false or a word")
    return values


def checked(choice: Choice) -> Choice:
    """Return ``choice`` with its fields checked, as a case records it.

    A revision is recorded with its commit, and its files are written; the working tree is not. Raises BadInput.
    """
    implementation = build(choice)
    fields = to_fields(implementation)
    fields |= {f"{ARGS}{name}": value for name, value in sorted(fields.pop("args", {}).items())}
    fields = {name: v for name, v in fields.items() if v is not None or name not in _optional(type(implementation))}
    rev = fields.pop("rev", None)
    if rev is None:
        return Choice(choice.name, fields)
    if (place := implementation.revised()) is None:
        of = choice.fields.get("of")
        label = f"{choice.name}(of={of})" if of else choice.name
        raise BadInput(f"impl.rev={rev}: {label} has no revisions here; leave impl.rev out")
    recorded = revisions.resolve(rev, place)
    revisions.snapshot(recorded, place)
    return Choice(choice.name, {**fields, "rev": recorded})


def kind(choice: Choice) -> type[Implementation]:
    """Return the class of the implementation of ``choice``.

    A choice with a ``path`` and the name of no implementation is a user's function with another name: ``impl=file``.
    """
    is_function = "path" in choice.fields and not has_option("implementations", choice.name)
    try:
        return implementation_class("file" if is_function else choice.name)
    except LookupError as error:
        raise BadInput(f"impl={choice.name}: {error}") from None


def implementation_class(name: str) -> type[Implementation]:
    """Return the class of ``impl=<name>``: from a file of this folder, else ``Kernel`` for ``kernels/<op>/``."""
    if has_option("implementations", name):
        return option_class("implementations", name)
    return kernel(name)


@cache
def kernel_names(op: str = "*") -> list[str]:
    """Return the names of the implementations in ``kernels/<op>``, by default of all operations."""
    return sorted({path.stem for path in KERNELS.glob(f"{op}/[!_]*.py")})


@cache
def defaults() -> dict[str, Choice]:
    """Return all implementations by name, with the fields of their YAML files. A kernel may have no YAML file."""
    files = [read_yaml(path.read_text(encoding="utf-8")) for path in CONF.glob("impl/*.yaml")]
    plain = {name: Choice(name, {"rev": None}) for name in kernel_names()}
    return plain | {record["name"]: Choice.from_record(record) for record in files}


def call_line(op: str) -> str:
    """Return the call of a function of ``op``, as in ``gelu(x, *, form)``; "" if ``kernels/<op>`` does not have it."""
    text = import_module(f"..kernels.{op}", __package__).__doc__ if has_option("kernels", op) else None
    line = CALL.search(text or "")
    return re.sub(r", \w+=\w+", "", line[1]).replace(", *)", ")") if line else ""  # without defaults


def as_function(function: Function) -> types.FunctionType:
    """Return ``function`` as a plain Python function, which wraps a module, builtin, script or partial.

    The wrapper has the signature of a module's ``forward``. For a builtin without a signature, it takes tensors only.
    """
    if isinstance(function, types.FunctionType):
        return function
    if isinstance(function, type) and hasattr(function, "forward"):
        return _of_module(function)

    def call(*tensors: Tensor, **options: object) -> Tensor:
        return function(*tensors, **options)

    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except ValueError:
        signature = inspect.signature(lambda *tensors: None)
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature reads it
    return call  # type: ignore[return-value]  # mypy does not know that a def makes a FunctionType


def _of_module(cls: type) -> types.FunctionType:
    """Return the call of a module of the class ``cls``, which the workload makes and gives as the first argument."""

    def call(module: Function, *args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call.of_module = cls  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


@dataclass
class FirstCalls:
    """Report of an implementation about its first calls."""

    metrics: dict[str, Scalar] = field(default_factory=dict)  # by runner.records.columns.COLUMNS
    fallback: str = ""  # why it did not run as requested, in one sentence, else ""


def build_metrics(builds: Sequence[Any]) -> dict[str, Scalar]:
    """Return the seconds that ``builds`` of CUDA C++ took, and whether all their code was found on disk."""
    return {"compile_s": sum(b.seconds for b in builds), "compile_cached": all(b.cached for b in builds)}


class Implementation(ABC):
    """Base class. Fields are the fields of the YAML file. Only ``load`` and later methods may import torch."""

    CHECKED: ClassVar[bool] = True  # False: its outputs are not the workload's, so it is never the fastest

    def missing(self, op: str) -> str:
        """Return the reason why there is no such implementation of ``op``, without loading anything, else ""."""
        return ""

    def revised(self) -> Path | None:
        """Return a path in the git repository whose revisions its field ``rev`` names; None if it has no revisions."""
        return None

    def sources(self, op: str) -> list[Path]:
        """Return the files that define it for ``op``, without their imports. They need not exist."""
        return [Path(inspect.getfile(type(self)))]

    @abstractmethod
    def load(self, op: str) -> Function:
        """Return the function, which takes the workload's tensors, and its options by name. Raises Unsupported."""

    def arguments(self, op: str) -> dict[str, str]:
        """Return the arguments of its function for ``op`` that ``args`` may give, including options of ``op``.

        Each has the source of its default; "" if only running the file tells it.
        """
        return {}

    def kept_on_disk(self, op: str) -> bool:
        """Return whether building it for ``op`` compiles code that a cache on disk keeps for the next process."""
        return False

    def wrap_call(self, call: Call, device: str) -> Call:
        """Return the call to time instead of ``call``, which binds the function to its inputs. Raises Unsupported."""
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
        """Return ``kernels/``; None without a field ``rev`` in the YAML file, as for PyTorch's own operators."""
        return KERNELS if "rev" in defaults()[self.name].fields else None

    @property
    def kernels(self) -> Path:
        """The folder ``kernels/`` of the revision. Raises BadInput if git no longer has it."""
        return revisions.snapshot(self.rev, KERNELS).place(KERNELS.resolve()) if self.rev else KERNELS

    def module(self, name: str) -> str:
        """Return the full name of the module ``name`` of ``kernels/``, such as ``gelu.triton``, of the revision."""
        package = loader.revision_package(self.kernels) if self.rev else f"{PACKAGE}.kernels"
        return f"{package}.{name}"

    def missing(self, op: str) -> str:
        """Return "" if there is a file for ``op``."""
        exists = self._file(op).is_file() if self.rev else has_option(f"kernels.{op}", self.name)
        if exists:
            return ""
        if own_file.is_own(op) and not self.rev:
            return f"{op} has no function {self.name}; choose reference or another one of its functions"
        return f"there is no {revisions.located(f'kernels/{op}/{self.name}.py', self.rev)}"

    def _file(self, op: str) -> Path:
        return self.kernels / op / f"{self.name}.py"

    def sources(self, op: str) -> list[Path]:
        """Return ``kernels/<op>/<name>.py``; [] for a revision, whose files never change."""
        return [] if self.rev else [self._file(op)]

    def arguments(self, op: str) -> dict[str, str]:
        """Return the keyword arguments of the function in ``kernels/<op>/<name>.py`` that are not YAML fields."""
        fields = rules_of(type(self))
        return {name: text for name, text in arguments.of_function(self._file(op), op).items() if name not in fields}

    def kept_on_disk(self, op: str) -> bool:
        """Return whether the file imports Triton or the builder of C++ extensions."""
        source = self._file(op)
        return source.is_file() and COMPILES.search(source.read_text(encoding="utf-8")) is not None

    def load(self, op: str) -> Function:
        """Return the function called ``op`` in that file, with its arguments ``args``.

        Raises Unsupported if a package that it needs is missing, or if the function lacks an argument.
        """
        if reason := self.missing(op):
            raise Unsupported(reason)
        if self.args and (lacking := self.args.keys() - set(self.arguments(op))):
            raise Unsupported(f"{op} of this {self.name} has no argument {', '.join(sorted(lacking))}")
        try:
            module = import_module(self.module(f"{op}.{self.name}"))
        except ModuleNotFoundError as error:
            raise Unsupported(f"{self.name} needs the package {error.name}; install it to run this") from error
        function: Function = getattr(module, op)
        return functools.partial(function, **self.args) if self.args else function

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Report the result of the file's ``chosen()`` after the first calls, if it has that function."""
        report = FirstCalls()
        yield report
        if chosen := getattr(sys.modules[self.module(f"{op}.{self.name}")], "chosen", None):
            report.metrics["config"] = chosen()


@cache
def kernel(name: str) -> type[Kernel]:
    """Return the class of the implementation ``name`` of ``kernels/``."""
    return type("Kernel", (Kernel,), {"name": name})


@dataclass(frozen=True)
class Wrapper(Implementation):
    """An implementation that runs another implementation, ``of``, in its own way."""

    of: str  # a name, or file.py:function
    rev: str | None = field(default=None, kw_only=True)  # git revision of ``of``; None: the working tree

    EXCLUDED: ClassVar[tuple[str, ...]]  # names that ``of`` may not be, besides "file" and "copy"

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
        """Return the path for the wrapped implementation."""
        return self.inner.revised()

    def missing(self, op: str) -> str:
        """Return the reason why the wrapped implementation is missing, else ""."""
        return self.inner.missing(op)

    def sources(self, op: str) -> list[Path]:
        """Return the source files of the wrapper and of the wrapped implementation."""
        return [*super().sources(op), *self.inner.sources(op)]
