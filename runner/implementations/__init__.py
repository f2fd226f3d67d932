"""Implementations: how a workload is computed. Most are files of ``kernels/<op>/``; the others stand here."""

from __future__ import annotations

import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from runner.device.processes import ROOT
from runner.experiment import schema
from runner.experiment.case import Choice, Scalar
from runner.experiment.schema import BadInput
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from runner.timing import Call

__all__ = ["Implementation", "Kernel", "Watch", "build", "find", "kind"]


def build(choice: Choice) -> Implementation:
    """The implementation that ``choice`` says. Raises BadInput if its fields are not what its class takes."""
    return schema.build(kind(choice), choice.fields, "impl")


def kind(choice: Choice) -> type[Implementation]:
    """The class of the implementation that ``choice`` says.

    A name that nothing here has, beside a ``path``, is what a user calls that function: else it is ``impl=file``.
    """
    own = (
        "path" in choice.fields
        and not schema.exists("runner.implementations", choice.name)
        and choice.name not in names()
    )
    try:
        return find("file" if own else choice.name)
    except LookupError as error:
        raise BadInput(f"impl={choice.name}: {error}") from None


def find(name: str) -> type[Implementation]:
    """The class behind ``impl=<name>``: one of this folder's, else a file of ``kernels/<op>/``."""
    if name not in ("base", "kernel") and schema.exists("runner.implementations", name):
        return schema.find("runner.implementations", name)
    return kernel(name)


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


KERNELS = ROOT / "runner" / "kernels"
CALLED = re.compile(r"^\w+\((.*)\) -> \w+$", re.MULTILINE)  # of the docstring of kernels.<op>: the call,
TENSOR = re.compile(r"^    (\w+(?:, \w+)*)  +(\S.*?)(?:  |$)", re.MULTILINE)  # and each tensor, with its shape
COMPILES = re.compile(r"^\s*(import|from) (triton|torch\.utils\.cpp_extension)\b", re.MULTILINE)


@dataclass(frozen=True)
class Kernel(Implementation):
    """The implementation called ``name`` of whatever operation is asked for. It has no fields."""

    name: ClassVar[str]

    def missing(self, op: str) -> str:
        """Empty if there is a file for ``op``."""
        if schema.exists(f"runner.kernels.{op}", self.name):
            return ""
        return f"there is no kernels/{op}/{self.name}.py"

    def sources(self, op: str) -> list[Path]:
        """``kernels/<op>/<name>.py``."""
        return [KERNELS / op / f"{self.name}.py"]

    def kept_on_disk(self, op: str) -> bool:
        """Triton's and the C++ compiler's."""
        (source,) = self.sources(op)
        return source.is_file() and COMPILES.search(source.read_text(encoding="utf-8")) is not None

    def load(self, op: str) -> Callable[..., Tensor]:
        """The function called ``op`` in that file. Raises Unsupported if what it needs is not installed."""
        if why := self.missing(op):
            raise Unsupported(why)
        try:
            module = import_module(f"runner.kernels.{op}.{self.name}")
        except ModuleNotFoundError as error:
            raise Unsupported(f"{self.name} needs the package {error.name}; install it to run this") from error
        function: Callable[..., Tensor] = getattr(module, op)
        return function

    @contextmanager
    def watching(self, op: str, device: str) -> Iterator[Watch]:
        """Asks the file, after the first calls, how it went about them: its ``chosen()``, if it has one."""
        watch = Watch()
        yield watch
        if chosen := getattr(sys.modules[f"runner.kernels.{op}.{self.name}"], "chosen", None):
            watch.metrics["config"] = chosen()

    def untimed(self, op: str) -> str:
        """Where Triton's interpreter runs it."""
        return under_interpreter(f"runner.kernels.{op}.{self.name}")


def names() -> list[str]:
    """The implementations that ``kernels/`` has, of whatever operation."""
    return sorted({path.stem for path in KERNELS.glob("*/[!_]*.py")})


@cache
def kernel(name: str) -> type[Kernel]:
    """The class of the implementation ``name``."""
    return type("Kernel", (Kernel,), {"name": name})


@dataclass(frozen=True)
class Arguments:
    """What a function of an operation is given."""

    tensors: str  # in their order: x, w1, b1, ..., wL, bL
    shapes: str  # x [batch, dim], w [dim, dim], b [dim]
    options: tuple[str, ...]  # by name, those that it cannot do without


def arguments(op: str) -> Arguments | None:
    """As the docstring of ``runner.kernels.<op>`` has them; None if it has none."""
    try:
        text = import_module(f"runner.kernels.{op}").__doc__ or ""
    except ModuleNotFoundError:
        return None
    if not (call := CALLED.search(text)):
        return None
    tensors, _, options = call[1].partition(", *, ")
    names = {name.rstrip("1L") for name in tensors.split(", ")}  # w1 and wL are described as w
    shapes = [f"{name} {shape}" for name, shape in TENSOR.findall(text) if names.issuperset(name.split(", "))]
    needed = tuple(name for name in options.split(", ") if name and "=" not in name)
    return Arguments(tensors, ", ".join(shapes), needed)
