"""Base classes of workloads whose tolerance is automatic: they compute their outputs, and derive no errors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from .layout import WithLayout
from .passes import WithPasses
from .workload import DType, Expected, Workload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Automatic(Workload):
    """A workload that computes its outputs by operators of torch, in whatever floating types its inputs have.

    ``runner.subject.tolerance`` runs ``outputs_of`` in float64, in the types of the inputs, and in float64 with the
    errors that rounding may have. The limits follow from these runs.
    """

    @property
    def computed(self) -> DType:
        """The narrowest type that the workload computes in."""
        return self.dtype

    @property
    def how(self) -> str:
        """What the row says of the reference, beside that its tolerance is automatic: ``; in blocks``."""
        return ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs, by which a row says what is wrong; none: their places."""
        return ()

    @abstractmethod
    def outputs_of(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return every output, in the order of an implementation's."""

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Raise NotImplementedError: ``outputs_of`` is in its place."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class WithFormula(WithPasses, WithLayout, Automatic):
    """y of one or more tensors, the gradients of all of them alone, or both."""

    differentiated: ClassVar[tuple[str, ...]]  # names of the inputs that have a gradient

    pass_: Literal["fwd", "bwd", "fwd_bwd"]  # for the last two, the last input is the gradient of y

    @property
    def names(self) -> tuple[str, ...]:
        """``y``, and with a backward ``dx`` and the like."""
        gradients = [f"d{name}" for name in self.differentiated] if self.pass_ != "fwd" else []
        return (*gradients,) if self.pass_ == "bwd" else ("y", *gradients)

    @abstractmethod
    def formula(self, *tensors: Tensor) -> Tensor:
        """Return y by operators of torch, in whatever floating type the tensors have."""

    def outputs_of(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return every output of the formula: y and, if the pass has a backward, the gradients."""
        outputs: tuple[Tensor, ...] = self.call(self.formula, inputs).run()
        return outputs
