"""The base class of workloads, and their inputs. No workload imports torch when it is loaded; tensors are arguments.

So they read as declarations, and the command line checks a config against their fields without importing torch.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from ..timing.call import Call, Work
from ..timing.call import Expected as Expected
from ..timing.call import Outputs as Outputs

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

DType = Literal["float32", "float16", "bfloat16", "float64"]
Stored = Literal[DType, "float8_e4m3fn"]  # dtype of inputs, for workloads that accept float8
OutputType = Literal[DType, "int64"]  # dtype of outputs
Data = Literal["normal", "uniform", "zeros"]
Size = Annotated[int, "at least 1"]  # the schema checks every field with this annotation

# Bytes.
ITEMSIZE: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "float8_e4m3fn": 1}

# Unit roundoff: the largest relative error of rounding a real number to the dtype (IEEE 754, to nearest).
UNIT: dict[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}

# Smallest positive number of the dtype. Numbers below half of it round to 0.
TINY: dict[str, float] = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133, "float64": 2.0**-1074}

# Unit roundoff of the arithmetic. Dtypes narrower than float32 are computed in float32. float8 is the exception: a
# Hopper GPU adds 32 products to a sum at a time, and keeps 13 bits below the leading bit of the largest of them.
ARITHMETIC: dict[str, float] = {name: min(UNIT[name], UNIT["float32"]) for name in UNIT} | {"float8_e4m3fn": 2.0**-13}


class Draw(Protocol):
    """Makes input tensors of the workload's dtype, on the case's device, from its seed and its ``data``."""

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return a tensor of ``shape``: normal with standard deviation ``scale``, uniform in +-``scale``, or zeros."""


# Functions that fill a new tensor in place: x, scale, generator -> x.
FILL: dict[str, Callable[[Tensor, float, Generator], Tensor]] = {
    "normal": lambda x, scale, generator: x.normal_(std=scale, generator=generator),
    "uniform": lambda x, scale, generator: x.uniform_(-scale, scale, generator=generator),
    "zeros": lambda x, scale, generator: x.zero_(),
}


def draw_on(device: str | torch.device, dtype: Stored, data: Data, seed: int) -> Draw:
    """Return a Draw with its own generator on ``device``. A tensor depends on the seed and the tensors drawn before it.

    Values are drawn in float32 and rounded to ``dtype``; float64 is drawn in float64. So narrower dtypes hold the
    float32 values after one rounding. A CPU and a GPU draw different values from the same seed.
    """
    import torch

    stored: torch.dtype = getattr(torch, dtype)
    drawn = torch.float64 if stored == torch.float64 else torch.float32  # promote_types does not accept float8
    generator = torch.Generator(device).manual_seed(seed)
    fill = FILL[data]

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return fill(torch.empty(shape, dtype=drawn, device=device), scale, generator).to(stored)

    return draw


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """A computation of given sizes. Subclasses add their sizes as fields; the YAML file holds the defaults."""

    dtype: DType  # storage type of inputs, and of outputs unless ``output_dtype`` differs
    tf32: bool  # may float32 products run on tensor cores, with operands rounded to 10 bits of mantissa?
    data: Data  # what the inputs hold; zeros are labelled, since they can run faster than real data

    @property
    def output_dtype(self) -> OutputType:
        """Storage type of the outputs."""
        return self.dtype

    @abstractmethod
    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return the input tensors, in the order of an implementation's arguments."""

    @abstractmethod
    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return every output, computed in float64 from the stored inputs, with the tolerance of each element."""

    @abstractmethod
    def flops(self) -> int:
        """Return the floating-point operations of the definition, independent of the implementation."""

    @abstractmethod
    def bytes_min(self) -> int:
        """Return the least bytes of memory traffic: each input is read once, and each output is written once."""

    def draw_inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Return the input tensors on ``device``, drawn from ``seed``."""
        return self.inputs(draw_on(device, self.dtype, self.data, seed))

    def expected_outputs(self, inputs: tuple[Tensor, ...], *, quick: bool = False) -> Outputs:
        """Return what judges the outputs of an implementation; ``quick`` saves time if the tolerance is estimated."""
        import torch

        from ..timing.correctness import ExpectedOutputs

        return ExpectedOutputs(self.reference(*inputs), getattr(torch, self.output_dtype))

    def work(self) -> Work:
        """Return ``flops`` and ``bytes_min``, with the dtype of the arithmetic."""
        return Work(self.flops(), self.bytes_min(), self.dtype, self.tf32)

    def options(self) -> Mapping[str, object]:
        """Return the keyword arguments of an implementation, of which it gets the ones in its signature."""
        return {}

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Bind ``function`` to ``inputs`` and its options, once: the result is checked, and then timed."""
        options = options_for(function, self.options(), len(inputs))
        return Call(run=lambda: (function(*inputs, **options),))


def options_for(function: Callable[..., object], options: Mapping[str, Any], positional: int = 0) -> dict[str, Any]:
    """Return the ``options`` that ``function`` takes by name, in addition to ``positional`` arguments.

    A builtin without a signature takes none.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    kinds = inspect.Parameter
    in_order = [each for each in parameters if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    filled = {each.name for each in in_order[:positional]}  # an argument may have the name of an option
    named = {each.name for each in parameters if each.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    takes_all = any(each.kind is kinds.VAR_KEYWORD for each in parameters)
    return {name: value for name, value in options.items() if (takes_all or name in named) and name not in filled}
