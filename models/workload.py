"""What every workload declares. No torch here, and none in the workloads: their tensors come in from outside.

That keeps them readable as declarations, and lets the command line check a config against their fields
without importing torch.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from runner.timing import Call, Work

if TYPE_CHECKING:
    from torch import Tensor

DType = Literal["float32", "float16", "bfloat16", "float64"]
Stored = Literal[DType, "float8_e4m3fn"]  # of inputs: a workload says so if it takes the last one too
Data = Literal["normal", "uniform", "zeros"]
Size = Annotated[int, "at least 1"]  # the schema checks every field annotated so

# Bytes.
ITEMSIZE: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "float8_e4m3fn": 1}

# Unit roundoff: the largest relative error of rounding a real number to the type (IEEE 754, to nearest).
UNIT: dict[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}

# Smallest positive number of the type: below it, rounding loses everything.
TINY: dict[str, float] = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133, "float64": 2.0**-1074}

# Types narrower than float32 are stored narrow and computed in float32, so that is where arithmetic errs. Not float8: a
# Hopper GPU adds 32 products to a sum at a time, and keeps 13 bits below the first one of the largest of them.
ARITHMETIC: dict[str, float] = {name: min(UNIT[name], UNIT["float32"]) for name in UNIT} | {"float8_e4m3fn": 2.0**-13}


class Draw(Protocol):
    """Makes input tensors of the workload's dtype, on the case's device, from its seed and its ``data``."""

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A tensor of ``shape``: normal with standard deviation ``scale``, uniform in +-``scale``, or zeros."""


@dataclass(frozen=True)
class Expected:
    """One output as it should be: right is ``|y - value| <= atol + rtol * |value|`` at every element."""

    name: str  # "y", or "grad of w1"
    value: Tensor  # float64, of the output's shape
    atol: float | Tensor  # a number, or a float64 tensor of the output's shape
    rtol: float
    tolerance: str  # the same bound in words, for the row


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """A computation of given sizes. Subclasses add their sizes as fields; the YAML holds the defaults."""

    dtype: DType  # storage type of inputs, and of outputs unless ``output_dtype`` says otherwise
    tf32: bool  # may float32 products run on tensor cores, with operands rounded to 10 bits of mantissa?
    data: Data  # what the inputs hold; zeros are labelled, since they can run faster than real data

    @property
    def output_dtype(self) -> DType:
        """Storage type of the outputs."""
        return self.dtype

    @abstractmethod
    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """The input tensors, in the order in which an implementation takes them."""

    @abstractmethod
    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Every output, computed in float64 from the inputs as stored, with the error allowed at each element."""

    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations of the definition, whatever an implementation does."""

    @abstractmethod
    def bytes_min(self) -> int:
        """Bytes that must move at least: each input read once, each output written once."""

    def work(self) -> Work:
        """Both, with the type they are done in."""
        return Work(self.flops(), self.bytes_min(), self.dtype, self.tf32)

    def options(self) -> Mapping[str, object]:
        """Return the keyword arguments of an implementation. It gets those that its signature names."""
        return {}

    def options_for(self, function: Callable[..., Tensor], tensors: int) -> dict[str, object]:
        """Return the options that ``function`` takes by name, beside so many ``tensors``."""
        parameters = inspect.signature(function).parameters.values()
        in_order = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
        filled = {one.name for one in in_order[:tensors]}  # a tensor may have the name of an option
        named = {one.name for one in (*in_order[tensors:], *by_name)}
        if any(one.kind is one.VAR_KEYWORD for one in parameters):
            named = self.options().keys() - filled
        return {name: value for name, value in self.options().items() if name in named}

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Bind ``function`` to ``inputs`` and its options, once: the result is checked, and then timed."""
        options = self.options_for(function, len(inputs))
        return Call(run=lambda: (function(*inputs, **options),))
