"""Multilayer perceptron of Stanford CS336, lecture 6: h = activation(h W^T + b), after the last layer too.

An implementation is the forward pass; loss, backward and update are the same for all and live in
``runner.models.training``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from runner.models.mlp_errors import Rounding, Value, gradients
from runner.models.rounding import FLOOR, TF32
from runner.models.workload import ARITHMETIC, ITEMSIZE, TINY, UNIT, Draw, Expected, Size, Workload
from runner.timing import Call

if TYPE_CHECKING:
    from torch import Tensor


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
        from runner.models import training

        x, *given = inputs
        options = self.options_for(function, len(inputs))
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
        """For fwd, y; for fwd_bwd, y and the gradient of each parameter; for train_step, the updated parameters.

        The error allowed at each element is what correct implementations may make of roundings on the way to it
        (``runner.models.mlp_errors``), and of gradients ``_common_error`` more.
        """
        x, *params = (tensor.double() for tensor in inputs)
        if self.pass_ == "train_step":
            return self._expect_updated(x, params)
        backward = self.pass_ == "fwd_bwd"
        y, found = gradients(
            x, [Value(param) for param in params], self.activation, self._rounding(), backward=backward
        )
        times = self.steps if self.zero_grad == "accumulate" else 1
        rtol = self._common_error() + (times - 1) * UNIT[self.dtype]  # each sum is rounded
        names = self._names() if backward else []
        return (
            self._expect("y", y.value, y.bound(self._deviations())),
            *(
                self._expect(
                    f"grad of {name}", times * gradient.value, times * gradient.bound(self._deviations()), rtol
                )
                for name, gradient in zip(names, found, strict=True)
            ),
        )

    def flops(self) -> int:
        """Matrix products alone: 2 batch dim^2 per layer forward, and twice that backward, all times ``steps``.

        Backward has a product for the gradient of the weight and one for that of the layer's input; the first layer
        has none of the latter, since x needs no gradient. Biases, activations, loss and update are left out.
        """
        product = 2 * self.batch * self.dim**2
        products = self.layers if self.pass_ == "fwd" else 3 * self.layers - 1
        return self.steps * products * product

    def bytes_min(self) -> int:
        """Input and parameters read; y written (fwd), or y and gradients (fwd_bwd), or parameters (train_step).

        Once per call, however many steps it has: all but the first may find them in the cache.
        """
        rows = self.batch * self.dim
        params = self.layers * (self.dim + 1) * self.dim
        written = {"fwd": rows, "fwd_bwd": rows + params, "train_step": params}[self.pass_]
        return (rows + params + written) * ITEMSIZE[self.dtype]

    def _names(self) -> list[str]:
        return [f"{kind}{layer + 1}" for layer in range(self.layers) for kind in "wb"]

    def _rounding(self) -> Rounding:
        """What an operation of this type adds.

        Rounding to nearest errs by half of the unit roundoff, in the mean of squares. See the workload matmul: a sum of
        n centred terms errs by n^(1/2) / 4 in units of the arithmetic; of tf32, each factor by up to 2^-10; and narrow
        part sums may be rounded before they are added. Where the terms have one sign, as in the gradients of a deep net
        of gelu, the part sums grow with their number and not with its root: n^(1/2) / 4 then is relative to the sum.
        """
        stored, arithmetic = (UNIT[self.dtype] / 2) ** 2, ARITHMETIC[self.dtype]
        factors = 2 * TF32 if self.tf32 and self.dtype == "float32" else 0.0
        summed = sqrt(max(self.dim, self.batch)) / 4 * arithmetic
        return Rounding(
            stored=stored,
            product=(UNIT[self.dtype] / 2 + summed + factors) ** 2,
            summed=summed**2,
            arithmetic=arithmetic**2,
            smallest=(TINY[self.dtype] / 2) ** 2,
        )

    def _deviations(self) -> float:
        """How many of its deviations an error may have, the largest of all elements.

        Errors are not quite independent, and of relu what tells most is a few flips of a derivative, the fewer the
        finer the type. So these are found by trying torch and naive on a CPU, with gradients and training steps. Up to
        8 layers of 16 to 64 features none of 28,800 right results was called wrong: gradients erred by 0.68 of what is
        allowed at most, updates by 0.74. Of 5,400 of 9 to 32 layers and up to 128 features 9 were, 7 of them in gelu.

        What passes: up to 8 layers no gradients of 0, and updates of 0 in 38 of 2570 cases of relu in 16 bits, in one
        of 1500 of gelu there, and in none in float32. Of 9 to 32 layers, gradients of 0 in one case of 1240, but
        updates of 0 in a quarter of those of relu in 16 bits: of several steps, each of which knows less of the last.
        """
        if UNIT[self.dtype] == ARITHMETIC[self.dtype]:
            return 32.0
        return 16.0 if self.activation == "gelu" else 6.0

    def _common_error(self) -> float:
        """Relative error that all elements of a gradient have in common: that of 1 / (batch dim), handed on by mean().

        That is 1.5e-5 at 256 x 256, which float16 keeps as a multiple of 6e-8. From 2^24 elements on nothing is left of
        float16 gradients, and anything passes: take bfloat16.
        """
        return UNIT[self.dtype] + TINY[self.dtype] / 2 * self.batch * self.dim

    def _expect(self, name: str, value: Tensor, bound: Tensor, rtol: float = 0.0) -> Expected:
        return Expected(
            name=name,
            value=value,
            atol=bound + FLOOR[self.dtype],
            rtol=rtol,
            tolerance=f"{rtol:.1e} |r| + {self._deviations():g} deviations of propagated roundings",
        )

    def _expect_updated(self, x: Tensor, start: list[Tensor]) -> tuple[Expected, ...]:
        """Parameters after all steps. Each rounds them, and what they are off by then is off in the next gradients.

        An update that is smaller than the last digit of its parameter is lost, whatever its direction. This adds up:
        where all are lost, the next gradient is the last one. So of the difference between the two, that share is
        allowed which is lost of the update, by the norm, at each element and of the mean.
        """
        unit, most = UNIT[self.dtype] + UNIT["float64"], self._deviations()  # what is compared with is rounded as well
        params = [Value(param) for param in start]
        zeros = [param.new_zeros(param.shape) for param in start]
        summed, bounds, allowed, before, lost = zeros, zeros, zeros, zeros, 0.0
        keep = float(self.zero_grad == "accumulate")
        for step in range(self.steps):
            _, found = gradients(x, params, self.activation, self._rounding(), backward=True)
            turned = [(gradient.value - last).abs() for gradient, last in zip(found, before, strict=True)]
            bounds = [
                keep * bound + gradient.bound(most) + self._common_error() * gradient.value.abs()
                + lost * (turn + turn.mean())
                for bound, gradient, turn in zip(bounds, found, turned, strict=True)
            ]  # fmt: skip
            before = [gradient.value for gradient in found]
            summed = [keep * total + gradient for total, gradient in zip(summed, before, strict=True)]
            moved = [param.value - self.lr * total for param, total in zip(params, summed, strict=True)]
            allowed = [
                so_far + self.lr * bound + unit * (value.abs() + self.lr * total.abs())
                for so_far, bound, value, total in zip(allowed, bounds, moved, summed, strict=True)
            ]
            # An error of a gradient is made of rows of h, and shifts z by its product with the same rows: of one row,
            # all terms of that sum have one sign.
            alike, stored = 1 + self.dim / self.batch, (step + 1) * self._rounding().stored
            params = [
                Value(value, alike * (bound / most).square() + stored * value.square())
                for value, bound in zip(moved, allowed, strict=True)
            ]
            update = self.lr * sqrt(sum(float(total.square().sum()) for total in summed))
            rounded = unit * sqrt(sum(float(value.square().sum()) for value in moved))
            lost = min(1.0, rounded / update) if update else 0.0
        expected = zip(self._names(), params, allowed, strict=True)
        return tuple(self._expect(name, param.value, bound, unit) for name, param, bound in expected)
