"""A function of this repository: ``kernels/<op>/<name>.py``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from runner.device.processes import ROOT
from runner.experiment import options
from runner.implementations.base import Implementation, Watch, under_interpreter
from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

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
        if options.exists(f"runner.kernels.{op}", self.name):
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
