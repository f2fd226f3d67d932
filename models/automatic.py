"""The base class of workloads whose tolerance is automatic: they give the formula of their outputs, and no errors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .layout import WithLayout
from .passes import WithPasses
from .workload import Expected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Automatic(WithPasses, WithLayout):
    """y of one or more tensors, the gradients of all of them alone, or both.

    ``runner.subject.tolerance`` runs ``outputs_of`` in float64, in the types of the inputs, and in float64 with the
    errors that rounding may have. The limits follow from these runs.
    """

    pass_: Literal["fwd", "bwd", "fwd_bwd"]  # for the last two, the last input is the gradient of y

    @abstractmethod
    def formula(self, *tensors: Tensor) -> Tensor:
        """Return y by operators of torch, in whatever floating type the tensors have."""

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Raise NotImplementedError: ``outputs_of`` is in its place."""
        raise NotImplementedError

    def outputs_of(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return every output of the formula: y and, if the pass has a backward, the gradients."""
        outputs: tuple[Tensor, ...] = self.call(self.formula, inputs).run()
        return outputs
