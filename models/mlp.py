"""Multilayer perceptron of Stanford CS336, lecture 6: h = activation(h W^T + b), after the last layer too.

An implementation is the forward pass; loss, backward and update are the same for all and live in ``models.training``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from models.rounding import FLOOR, TF32
from models.workload import ARITHMETIC, ITEMSIZE, TINY, UNIT, Call, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * (1 + (x / sqrt(2)).erf()) / 2,  # the exact form
    "relu": lambda x: x.relu(),  # derivative 0 at 0; clamp has 1 there
}


@dataclass(frozen=True, kw_only=True)
class Mlp(Workload):
    """``steps`` passes of ``layers`` layers over one batch x [batch, dim]; the loss is the mean of y [batch, dim]."""

    dim: Size  # features, the same in every layer
    layers: Size  # linear layers, each followed by the activation
    batch: Size  # rows of x
    steps: Size  # passes in one call
    activation: Literal["gelu", "relu"]  # gelu is the exact form
    pass_: Literal["fwd", "fwd_bwd", "train_step"]  # forward; with backward; with backward and SGD update
    zero_grad: Literal["every_step", "accumulate"]  # accumulate: cleared once a call, then summed, as in the lecture
    lr: Annotated[float, "above 0"]  # learning rate of train_step
    print_loss: bool  # after each step; reading it makes the host wait for the GPU

    def __post_init__(self) -> None:
        if self.print_loss and self.pass_ == "fwd":
            raise ValueError("print_loss: pass=fwd has no loss to print; give pass=fwd_bwd or pass=train_step")

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Input x [batch, dim], then weight [dim, dim] and bias [dim] of each layer.

        The standard deviation of the weights, (2 / dim)^(1/2), keeps activations and gradients of about the same size
        through all layers (He et al. 2015, arXiv:1502.01852).
        """
        params: list[Tensor] = []
        for _ in range(self.layers):
            params += draw(self.dim, self.dim, scale=sqrt(2 / self.dim)), draw(self.dim, scale=0.1)
        return (draw(self.batch, self.dim), *params)

    def options(self) -> Mapping[str, object]:
        """The activation."""
        return {"activation": self.activation}

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """The pass, with ``function`` for its forward. A training step changes copies of ``inputs``."""
        from models import training

        x, *given = inputs
        options = self.options()
        if self.pass_ == "fwd":
            return training.forward_only(lambda: function(*inputs, **options), self.steps)
        params = training.copies(given) if self.pass_ == "train_step" else training.leaves(given)
        accumulate = self.zero_grad == "accumulate"
        told = training.print_loss if self.print_loss else None

        def forward() -> Tensor:
            return function(x, *params, **options)

        if self.pass_ == "fwd_bwd":
            return training.forward_backward(forward, self.steps, params, accumulate=accumulate, told=told)
        return training.train(forward, self.steps, params, accumulate=accumulate, lr=self.lr, told=told)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """For fwd, y; for fwd_bwd, y and the gradient of each parameter; for train_step, the updated parameters."""
        wide = tuple(tensor.double() for tensor in inputs)
        values = replace(self, print_loss=False).call(_forward, wide).run()
        params = [f"{kind}{layer + 1}" for layer in range(self.layers) for kind in "wb"]
        if self.pass_ == "train_step":
            updated = zip(params, values, wide[1:], strict=True)
            return tuple(self._expect_updated(param, value, start) for param, value, start in updated)
        y, *gradients = values
        of_params = zip(params, gradients, strict=False)  # there are no gradients in a forward pass
        return (
            self._expect("y", y, self._forward_error(), 1.0),
            *(
                self._expect(f"grad of {param}", value, self._gradient_error(), self._gradient_scale())
                for param, value in of_params
            ),
        )

    def flops(self) -> int:
        """Matrix products alone: 2 batch dim^2 a layer forward, and twice that backward, all times ``steps``.

        Backward has a product for the gradient of the weight and one for that of the layer's input; the first layer
        has none of the latter, since x needs no gradient. Biases, activations, loss and update are left out.
        """
        product = 2 * self.batch * self.dim**2
        products = self.layers if self.pass_ == "fwd" else 3 * self.layers - 1
        return self.steps * products * product

    def bytes_min(self) -> int:
        """Input and parameters read; y written (fwd), or y and gradients (fwd_bwd), or parameters (train_step).

        Once a call, however many steps it has: all but the first may find them in the cache.
        """
        rows = self.batch * self.dim
        params = self.layers * (self.dim + 1) * self.dim
        written = {"fwd": rows, "fwd_bwd": rows + params, "train_step": params}[self.pass_]
        return (rows + params + written) * ITEMSIZE[self.dtype]

    def _unit(self) -> float:
        """Relative error of one linear layer's output, in the norm: stored once, summed in any order, tf32 factors.

        See the workload matmul: a sum of centred terms errs by a quarter of their number's root, in units of the
        arithmetic, and tf32 factors by up to 2^-10 each.
        """
        summed = sqrt(max(self.dim, self.batch)) / 4 * ARITHMETIC[self.dtype]
        factors = 2 * TF32 if self.tf32 and self.dtype == "float32" else 0.0
        return UNIT[self.dtype] + summed + factors

    def _forward_error(self) -> float:
        """Error allowed in y, relative to its largest element.

        A layer rounds up to three times where the type is narrow (product, sum with the bias, activation), and passes
        on what it is given without making it larger, as its weights are scaled. Independent roundings add as squares.
        The factor 2: the largest error of many, against the largest of as many elements.
        """
        return 2 * sqrt(3 * self.layers) * self._unit()

    def _gradient_error(self) -> float:
        """Error allowed in a gradient, relative to its largest element.

        As forward, with as many roundings again on the way back, one a step where gradients accumulate, and twice the
        factor, since the derivative of the activation carries the error of its input as well. Two more things befall
        correct gradients:

        Underflow. The gradient of a mean is 1 / (batch dim), 1.5e-5 at 256 x 256, which float16 keeps as a multiple
        of 6e-8. So every gradient on the way back errs by half of that, absolutely. From 2^24 elements on nothing is
        left of float16 gradients, and anything passes: take bfloat16.

        The kink of relu. Where an input of relu lies within its error of 0, its derivative may come out as 0 or as 1,
        and one of the terms that the gradient sums over the batch is lost or gained. Of ``batch`` terms, that error
        times ``batch`` are so on average, and one can always be; a term may be several times the mean one.
        """
        forward = self._forward_error()
        underflow = TINY[self.dtype] / 2 * self.batch * self.dim
        rounding = 4 * sqrt(6 * self.layers + self.steps) * (self._unit() + underflow)
        kink = 8 * (1 + sqrt(self.batch * forward)) / self.batch if self.activation == "relu" else 0.0
        return rounding + kink

    def _gradient_scale(self) -> float:
        """How large gradients of parameters are: y.mean() hands 1 / dim to each column, and a step adds as much."""
        return (self.steps if self.zero_grad == "accumulate" else 1) / self.dim

    def _expect(self, name: str, value: Tensor, relative: float, scale: float) -> Expected:
        """An output whose error is relative to its largest element, since smaller ones come about by cancellation.

        Where even the largest is below the usual ``scale``, as in the tail of a single gelu, so did that one.
        """
        largest = max(float(value.abs().max()), scale)
        return Expected(
            name=name,
            value=value,
            atol=relative * largest + FLOOR[self.dtype],
            rtol=0.0,
            tolerance=f"{relative:.1e} max(|r|, {scale:.1e})",
        )

    def _expect_updated(self, name: str, value: Tensor, start: Tensor) -> Expected:
        """A parameter: its change errs as gradients do, each step rounds it, and so is the reference, in float64."""
        relative = self._gradient_error()
        scale = self.lr * self.steps * self._gradient_scale()
        rtol = (self.steps + 1) * UNIT[self.dtype]
        change = max(float((value - start).abs().max()), scale)
        return Expected(
            name=name,
            value=value,
            atol=relative * change + FLOOR[self.dtype],
            rtol=rtol,
            tolerance=f"{rtol:.1e} |r| + {relative:.1e} max(|r - p|, {scale:.1e}), p before the update",
        )


def _forward(x: Tensor, *params: Tensor, activation: str) -> Tensor:
    activate = ACTIVATIONS[activation]
    for w, b in zip(params[::2], params[1::2], strict=True):
        x = activate(x @ w.mT + b)
    return x
