"""A base of workloads of one result whose backward is a pass of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..timing.call import Call
from .workload import Workload, options_for

if TYPE_CHECKING:
    from torch import Tensor


class WithPasses(Workload):
    """y of some tensors (``fwd``), the gradients of these alone (``bwd``), or both (``fwd_bwd``).

    With a backward, the last input is the gradient of y.
    """

    pass_: str  # a field of the workload, which names those that it has

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Return the pass, with ``function`` as its forward."""
        if self.pass_ == "fwd":
            return super().call(function, inputs)
        from . import training

        if options := options_for(function, self.options(), len(inputs) - 1):
            function = partial(function, **options)
        make = training.backward_only if self.pass_ == "bwd" else training.with_backward
        return make(function, *inputs)
