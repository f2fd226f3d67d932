"""A function from a user's file."""

import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from ..device import import_path
from ..device.used_paths import repository
from ..kernels.unsupported import Unsupported
from ..records.bad_input import choices
from ..records.options import PACKAGE
from ..tasks import formats
from . import Argument, FirstCalls, Function, Implementation, arguments, as_function, build_metrics, call_line, loader
from .revisions import Snapshot, located, snapshot


@dataclass(frozen=True)
class File(Implementation):
    """The function in ``path``: ``folder/my_softmax.py:softmax``, or ``package.module:softmax``."""

    path: str | None
    args: Mapping[str, Argument] = field(default_factory=dict, kw_only=True)  # keyword arguments of the function
    rev: str | None = field(default=None, kw_only=True)  # git revision of the file; None: the working tree

    def __post_init__(self) -> None:
        if self.path is None:
            raise ValueError("path: missing; name a function, as in impl.path=my_softmax.py:softmax")
        if not self.path.rpartition(":")[0] or not self._name.isidentifier():
            *module, name = self.path.split(".")
            first = next(iter(arguments.defined(Path(self.path))), "softmax")  # function or class of a .py file
            is_name = module and all(map(str.isidentifier, (*module, name)))  # as Python writes it
            example = f"{'.'.join(module)}:{name}" if is_name else "my_softmax.py:softmax"
            example = {"py": f"{self.path}:{first}", "json": f"{self.path}:run"}.get(name, example)
            raise ValueError(f"path: {self.path!r} names no function; give one, as in impl.path={example}")
        if not self._is_file and (".cu:" in self.path or not all(map(str.isidentifier, self._named.split(".")))):
            launch = ", a file that launches it by cuda_kernel" * (".cu:" in self.path)
            raise ValueError(f"path: {self._named} is not a Python file; write impl.path=my_softmax.py:softmax{launch}")
        if not self._is_file and self._found is None:
            raise ValueError(
                f"path: there is no module {self._named} with a source, installed or below {Path.cwd()}; "
                "a file ends with .py, as in impl.path=my_softmax.py:softmax"
            )
        if not self.rev and not self._file.is_file():
            raise ValueError(f"path: there is no file {self._file}; give a path that exists, seen from {Path.cwd()}")
        names = None if self.rev else arguments.names(self._file)
        if names is not None and self._name not in names:
            defined = arguments.defined(self._file)
            advice = choices(self._name, defined) if defined else "it defines no function"
            raise ValueError(f"path: {self._file} has no {self._name}; {advice}")

    @property
    def _named(self) -> str:
        return str(self.path).rpartition(":")[0]

    @cached_property
    def _found(self) -> str | None:
        """The source of a module, seen from the current folder; None if there is none."""
        return import_path.source_of(self._named, [os.getcwd(), str(repository(os.getcwd()))])

    @property
    def _file(self) -> Path:
        return Path(self._named if self._is_file else str(self._found))

    @property
    def _is_file(self) -> bool:
        return self._named.endswith(tuple(formats.TASKS))

    @property
    def _name(self) -> str:
        return str(self.path).rpartition(":")[2]

    @cached_property
    def _snapshot(self) -> Snapshot | None:
        """The files of the revision; None: the working tree. Raises BadInput if git no longer has them."""
        return snapshot(self.rev, self._file) if self.rev else None

    @property
    def _source(self) -> Path:
        return self._snapshot.place(self._file) if self._snapshot else self._file

    def revised(self) -> Path | None:
        """Return the file, which lies in the user's own repository."""
        return self._file

    def missing(self, op: str) -> str:
        """Return "" if the revision has the file."""
        exists = self._snapshot is None or self._source.is_file()
        return "" if exists else f"there is no {located(self._file, self.rev)}"

    def sources(self, op: str) -> list[Path]:
        """Return the source file of this class and the user's file, unless that is from a revision."""
        return [*super().sources(op), *(() if self._snapshot else (self._file,))]

    def arguments(self, op: str) -> dict[str, str]:
        """Return the keyword arguments of the function, and the meta-parameters of autotuned kernels in its file."""
        keywords = arguments.of_function(self._source, self._name)
        return keywords | dict.fromkeys(arguments.of_autotuned(self._source), "")

    def load(self, op: str) -> Function:
        """Return the function with its arguments ``args``; its file may import files of its folder.

        Raises AttributeError if the file lacks the function, and Unsupported if the revision lacks the file, or if
        autotuned kernels have no configuration with these arguments.
        """
        if reason := self.missing(op):
            raise Unsupported(reason)
        where = located(self._file, self.rev)
        if unknown := self.args.keys() - set(self.arguments(op)):
            raise Unsupported(f"{self._name} in {where} has no argument {', '.join(sorted(unknown))}")
        values = dict(self.args)
        given = {name: values.pop(name) for name in arguments.of_function(self._source, self._name) if name in values}
        apart = repr(sorted(values.items())) * bool(values)  # the others keep all configurations
        module = loader.load_file(self._source, self._snapshot, functions=(self._name,), apart=apart)
        if not hasattr(module, self._name):
            defined = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
            kind = Unsupported if self._snapshot else AttributeError  # as a revision that lacks the file
            raise kind(f"{where} defines no function {self._name}; it defines: {defined}")
        if values:
            arguments.pin(module, values)
        function = getattr(module, self._name)
        if isinstance(function, type) and (reason := _not_a_module(function, op)):
            raise TypeError(f"{self._name} in {where} {reason}")
        return as_function(partial(function, **given) if given else function)

    @contextmanager
    def first_calls(self, op: str, device: str) -> Iterator[FirstCalls]:
        """Report builds of CUDA C++. Add the call of ``op`` to a TypeError if arguments did not fit the function."""
        module = sys.modules.get(f"{PACKAGE}.kernels.cuda_build")  # imported if the file has a cuda_kernel
        builds = getattr(module, "builds", [])
        report, before = FirstCalls(), len(builds)
        try:
            yield report
            report.metrics |= build_metrics(builds[before:]) if builds[before:] else {}
        except TypeError as error:
            files = {os.path.realpath(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)}
            if os.path.realpath(self._source) not in files and (called := _called(op)):  # the function was not entered
                text = f"{called}; an option after * is left out if the signature does not name it"
                error.args = (f"{error}: {text}; docs/groups/workload.md has the shapes",)
            raise


def _not_a_module(cls: type, op: str) -> str:
    """Return the reason why the workload ``op`` cannot make a module of ``cls`` and call it, else ""."""
    import torch

    if not issubclass(cls, torch.nn.Module):
        return "is a class, but no torch.nn.Module; name a function or a module"
    made = getattr(cls.__init__, "__code__", None)  # it may set self.forward
    if cls.forward is torch.nn.Module.forward and "forward" not in getattr(made, "co_names", ()):
        return "defines no forward"
    return f"is a class; {called}: name a function, or an object of the class" if (called := _called(op)) else ""


def _called(op: str) -> str:
    """Return the call of a shipped workload, as in ``workload=gelu calls gelu(x, *, form)``; "" for other ones."""
    return f"workload={op} calls {line}" if (line := call_line(op)) else ""
