"""A data-parallel training step of an MLP: each rank has its own rows, and gradients are averaged over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from ..timing.call import Call
from .mlp import Mlp
from .ranks import OnRanks, gathered
from .workload import Draw, Expected, Size, draw_on, options_for

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DdpStep(OnRanks):
    """A step of an MLP of ``layers`` layers over ``batch`` rows of each rank: p -= lr * gradient of the mean of y.

    An implementation computes the gradients; the update is the same for all.
    """

    dim: Size  # features, the same in every layer
    layers: Size  # linear layers, each followed by the activation
    batch: Size  # rows of x on each rank
    activation: Literal["gelu", "relu"]  # gelu is the exact form
    lr: Annotated[float, "above 0"]  # learning rate

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [batch, dim], then weight [dim, dim] and bias [dim] of each layer, as the workload mlp does."""
        return self._mlp(1).inputs(draw)

    def draw_inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Return the input tensors on ``device``: x differs between ranks, the parameters are the same."""
        x, *_ = super().draw_inputs(device, seed)
        _, *params = self.inputs(draw_on(device, self.dtype, self.data, seed))
        return x, *params

    def options(self) -> Mapping[str, object]:
        """Return the activation."""
        return {"activation": self.activation}

    def call(self, function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> Call:  # type: ignore[override]
        """Return the step, which changes copies of the parameters. Its outputs are gradients and parameters."""
        import torch

        from ..kernels.spans import span
        from . import training

        x, *initial = inputs
        params = training.copies(initial)
        options = options_for(function, self.options(), len(inputs))
        training.let_backward_reuse_buffers(True)

        def run() -> tuple[Tensor, ...]:
            with span("step_0"):
                gradients = function(x, *params, **options)
                with span("optimizer_step"), torch.no_grad():
                    torch._foreach_add_(params, gradients, alpha=-self.lr)
            return *gradients, *(param.detach() for param in params)

        def reset() -> None:
            with torch.no_grad():
                torch._foreach_copy_(params, initial)

        return Call(run=run, reset=reset)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return the gradients over the rows of all ranks, then the updated parameters, as the workload mlp does."""
        x, *params = inputs
        rows = gathered(x).flatten(0, 1)
        expected = self._mlp(self.ranks).reference(rows, *params)
        return *expected[len(params) :], *expected[: len(params)]

    def flops(self) -> int:
        """Matrix products of one rank, forward and backward, as in the workload mlp."""
        return self._mlp(1).flops()

    def bytes_min(self) -> int:
        """A rank's x and parameters, read once, and parameters, written once."""
        return self._mlp(1).bytes_min()

    def _mlp(self, ranks: int) -> Mlp:
        """Return the step of one process over the rows of ``ranks`` ranks."""
        return Mlp(
            dim=self.dim,
            layers=self.layers,
            batch=self.batch * ranks,
            steps=1,
            activation=self.activation,
            pass_="train_step",  # noqa: S106  # a field, no password
            zero_grad="every_step",
            optimizer="sgd",
            autocast="none",
            lr=self.lr,
            print_loss=False,
            dtype=self.dtype,
            tf32=self.tf32,
            data=self.data,
        )
