"""Multilayer perceptron of Stanford CS336, lecture 6: h = activation(h W^T + b) in every layer, the last one included.

An implementation computes the forward pass. Loss, backward and update are the same for all implementations, in
``runner.models.training``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from ..timing.call import Call, Work
from .adamw import Updates
from .mlp_errors import Rounding, Value, gradients
from .rounding import COMMON, FLOOR, TF32, in_common
from .workload import ARITHMETIC, ITEMSIZE, TINY, UNIT, Draw, DType, Expected, Size, Workload, options_for

if TYPE_CHECKING:
    from torch import Tensor


ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}  # as in torch.optim.AdamW


@dataclass(frozen=True, kw_only=True)
class Mlp(Workload):
    """``steps`` passes of ``layers`` layers over one batch x [batch, dim]; the loss is the mean of y [batch, dim]."""

    dim: Size  # features, the same in every layer
    layers: Size  # linear layers, each followed by the activation
    batch: Size  # rows of x
    steps: Size  # passes in one call
    activation: Literal["gelu", "relu"]  # gelu is the exact form
    pass_: Literal["fwd", "fwd_bwd", "train_step"]  # forward; with backward; with backward and update
    zero_grad: Literal["every_step", "accumulate"]  # accumulate: clear once per call, then sum, as in the lecture
    optimizer: Literal["sgd", "adamw"]  # of train_step
    autocast: Literal["none", "bfloat16", "float16"]  # dtype of torch.autocast around the forward
    lr: Annotated[float, "above 0"]  # learning rate of train_step
    print_loss: bool  # print it after each step, for which the host waits for the GPU

    def __post_init__(self) -> None:
        if self.print_loss and self.pass_ == "fwd":
            raise ValueError("print_loss: pass=fwd has no loss to print; give pass=fwd_bwd or pass=train_step")

        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(f"autocast: with dtype={self.dtype} nothing is left to cast; give dtype=float32")

    @property
    def computed(self) -> DType:
        """Type of products and activations."""
        return self.dtype if self.autocast == "none" else self.autocast

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [batch, dim], then weight [dim, dim] and bias [dim] of each layer.

        The standard deviation of the weights, (2 / dim)^(1/2), keeps the size of activations and gradients about the
        same through all layers (He et al. 2015, arXiv:1502.01852).
        """
        params: list[Tensor] = []
        for _ in range(self.layers):
            params += draw(self.dim, self.dim, scale=sqrt(2 / self.dim)), draw(self.dim, scale=0.1)
        return (draw(self.batch, self.dim), *params)

    def options(self) -> Mapping[str, object]:
        """Return the activation."""
        return {"activation": self.activation}

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Return the pass, with ``function`` as its forward. A training step changes copies of ``inputs``."""
        from . import training

        x, *initial = inputs
        options = options_for(function, self.options(), len(inputs))
        if self.pass_ == "fwd":
            params = initial
        else:
            params = training.copies(initial) if self.pass_ == "train_step" else training.leaves(initial)
        accumulate = self.zero_grad == "accumulate"
        on_loss = training.print_loss if self.print_loss else None

        def forward() -> Tensor:
            return function(x, *params, **options)

        if self.autocast != "none":
            forward = training.autocast(forward, x, self.autocast)
        if self.pass_ == "fwd":
            return training.forward_only(forward, self.steps)
        if self.pass_ == "fwd_bwd":
            return training.forward_backward(forward, self.steps, params, accumulate=accumulate, on_loss=on_loss)
        adamw: Callable[..., object] | None = None
        if self.optimizer == "adamw":
            from ..kernels.adamw import torch as adamw_of_torch  # here, so that an edit of it leaves other rows as is

            adamw = partial(adamw_of_torch.adamw, **ADAMW)  # type: ignore[arg-type]
        return training.train(
            forward, self.steps, params, accumulate=accumulate, lr=self.lr, adamw=adamw, on_loss=on_loss,
            with_gradients=True,
        )  # fmt: skip

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y for fwd, y and the gradients for fwd_bwd, the updated parameters and the gradients for train_step.

        Parameters alone would not tell a wrong gradient whose update is lost by rounding, or that AdamW normalizes.

        The tolerance of each element comes from rounding errors that are propagated through the network
        (``runner.models.mlp_errors``). Gradients also have ``_common_error``.

        The factor that all y have in common is judged too, as errors of a row may agree, and those of several rows are
        independent; truncation to TF32 has one sign in each layer. That of gradients is not: in a deep net with gelu
        all their errors agree.
        """
        x, *params = (tensor.double() for tensor in inputs)
        if self.pass_ == "train_step":
            return self._expect_updated(x, params)
        backward = self.pass_ == "fwd_bwd"
        y, computed = gradients(
            self._cast(x), list(map(self._cast, params)), self.activation, self._rounding(), backward=backward
        )
        times = self.steps if self.zero_grad == "accumulate" else 1
        rtol = self._common_error() + (times - 1) * UNIT[self.dtype]  # each sum is rounded
        names = self._names() if backward else []
        truncated = 2 * TF32 * self.layers if self.tf32 and self.computed == "float32" else 0.0
        least = COMMON[self.computed] * UNIT[self.computed] + truncated
        return (
            replace(
                self._expect("y", y.value, y.bound(self._deviations())),
                common=in_common(y.value, y.bound(1.0), least, dim=-1),
            ),
            *(
                self._expect(
                    f"grad of {name}", times * gradient.value, times * gradient.bound(self._deviations()), rtol
                )
                for name, gradient in zip(names, computed, strict=True)
            ),
        )

    def flops(self) -> int:
        """Matrix products only: 2 batch dim^2 per layer forward, and twice that backward, all times ``steps``.

        Backward has one product for the gradient of the weight and one for the gradient of the layer's input. The first
        layer lacks the second, since x needs no gradient. Biases, activations, loss and update are left out.
        """
        product = 2 * self.batch * self.dim**2
        products = self.layers if self.pass_ == "fwd" else 3 * self.layers - 1
        return self.steps * products * product

    def bytes_min(self) -> int:
        """Input x and parameters, read, and y (fwd), y and gradients (fwd_bwd) or parameters (train_step), written.

        Both moments of AdamW are read and written too. All count once per call with any number of steps, since later
        steps may find them in the cache.
        """
        rows = self.batch * self.dim
        params = self.layers * (self.dim + 1) * self.dim
        written = {"fwd": rows, "fwd_bwd": rows + params, "train_step": params}[self.pass_]
        moments = 4 * params if self.optimizer == "adamw" and self.pass_ == "train_step" else 0
        return (rows + params + written) * ITEMSIZE[self.dtype] + moments * max(4, ITEMSIZE[self.dtype])

    def work(self) -> Work:
        """Return ``flops`` and ``bytes_min``, with the dtype of the products."""
        return replace(super().work(), dtype=self.computed)

    def _names(self) -> list[str]:
        return [f"{kind}{layer + 1}" for layer in range(self.layers) for kind in "wb"]

    def _rounding(self) -> Rounding:
        """Return the variances of the errors of one operation in this dtype.

        The root mean square error of rounding to nearest is half of the unit roundoff. As in the workload matmul, the
        error of a sum of n centred terms is n^(1/2) / 4 units of the arithmetic, tf32 adds up to 2^-10 for each factor,
        and narrow partial sums may be rounded before they are added. If the terms have one sign, as in the gradients of
        a deep net with gelu, partial sums grow with n and not with its root; then n^(1/2) / 4 is relative to the sum.
        """
        stored, arithmetic = (UNIT[self.computed] / 2) ** 2, ARITHMETIC[self.computed]
        factors = 2 * TF32 if self.tf32 and self.computed == "float32" else 0.0
        summed = sqrt(max(self.dim, self.batch)) / 4 * arithmetic
        return Rounding(
            stored=stored,
            product=(UNIT[self.computed] / 2 + summed + factors) ** 2,
            summed=summed**2,
            arithmetic=arithmetic**2,
            smallest=(TINY[self.computed] / 2) ** 2,
        )

    def _cast(self, tensor: Tensor) -> Value:
        """Return ``tensor`` as a product takes it: autocast rounds it before."""
        return Value(tensor, 0.0 if self.autocast == "none" else self._rounding().stored * tensor.square())

    def _deviations(self) -> float:
        """Return the number of standard deviations allowed for the largest error of all elements.

        Errors are not fully independent, and with relu a few flips of a derivative dominate, fewer for more precise
        dtypes. So these numbers come from experiments with torch and naive on a CPU, with gradients and training steps.
        With up to 8 layers of 16 to 64 features, none of 28,800 correct results was rejected; the largest errors were
        0.68 of the tolerance for gradients and 0.74 for updates. With 9 to 32 layers and up to 128 features, 9 of 5,400
        were rejected, 7 of them with gelu.

        Some wrong results pass. With up to 8 layers, gradients of 0 never pass. Updates of 0 pass in 38 of 2570 cases
        of relu in 16 bits, in one of 1500 of gelu in 16 bits, and never in float32. With 9 to 32 layers, gradients of 0
        pass in one of 1240 cases, and updates of 0 in a quarter of the cases of relu in 16 bits that have several
        steps, since the errors grow from step to step.
        """
        if UNIT[self.computed] == ARITHMETIC[self.computed]:
            return 32.0
        return 16.0 if self.activation == "gelu" else 6.0

    def _common_error(self) -> float:
        """Return the relative error that all elements of a gradient share, the error of 1 / (batch dim) from mean().

        This number is 1.5e-5 at 256 x 256, and float16 rounds it to a multiple of 6e-8. From 2^24 elements on, float16
        gradients are 0 and any result passes: use bfloat16.
        """
        return UNIT[self.computed] + TINY[self.computed] / 2 * self.batch * self.dim

    def _expect(self, name: str, value: Tensor, bound: Tensor, rtol: float = 0.0) -> Expected:
        return Expected(
            name=name,
            value=value,
            atol=bound + FLOOR[self.computed],
            rtol=rtol,
            tolerance=f"{rtol:.1e} |r| + {self._deviations():g} deviations of propagated roundings",
        )

    def _expect_updated(self, x: Tensor, start: list[Tensor]) -> tuple[Expected, ...]:
        """Return the parameters after all steps, and the gradients of the last one, summed if they accumulate.

        Each step rounds the parameters, and their errors change the next gradients.

        An update that is smaller than the last digit of its parameter is lost with either sign. If all updates are
        lost, the next gradient equals the last one. So the tolerance includes a share of the difference between the
        two gradients, at each element and in the mean. The share is the part of the update, by its norm, that is lost.
        """
        unit, most = UNIT[self.dtype] + UNIT["float64"], self._deviations()  # the reference is rounded as well
        params = list(map(self._cast, start))
        zeros = [param.new_zeros(param.shape) for param in start]
        summed, bounds, allowed, before, lost = zeros, zeros, zeros, zeros, 0.0
        keep = float(self.zero_grad == "accumulate")
        updates = Updates(self.lr, **ADAMW) if self.optimizer == "adamw" else None
        decay, roundings = (1 - self.lr * ADAMW["weight_decay"], 2) if updates else (1.0, 1)
        for step in range(self.steps):
            _, computed = gradients(self._cast(x), params, self.activation, self._rounding(), backward=True)
            turned = [(gradient.value - last).abs() for gradient, last in zip(computed, before, strict=True)]
            bounds = [
                keep * bound + gradient.bound(most) + self._common_error() * gradient.value.abs()
                + lost * (turn + turn.mean())
                for bound, gradient, turn in zip(bounds, computed, turned, strict=True)
            ]  # fmt: skip
            before = [gradient.value for gradient in computed]
            summed = [keep * total + gradient for total, gradient in zip(summed, before, strict=True)]
            changes = [(self.lr * total, self.lr * bound) for total, bound in zip(summed, bounds, strict=True)]
            if updates:
                changes = updates.next(summed, bounds)
            moved = [decay * param.value - change for param, (change, _) in zip(params, changes, strict=True)]
            allowed = [
                so_far + bound + unit * (roundings * value.abs() + change.abs())
                for so_far, value, (change, bound) in zip(allowed, moved, changes, strict=True)
            ]
            # The error of a gradient is a combination of rows of h, and shifts z by its product with the same rows. For
            # a single row, all terms of that sum have one sign.
            alike, stored = 1 + self.dim / self.batch, (step + 1) * self._rounding().stored
            params = [
                Value(value, alike * (bound / most).square() + stored * value.square())
                for value, bound in zip(moved, allowed, strict=True)
            ]
            update = sqrt(sum(float(change.square().sum()) for change, _ in changes))
            rounded = unit * sqrt(sum(float(value.square().sum()) for value in moved))
            lost = min(1.0, rounded / update) if update else 0.0
        expected = zip(self._names(), params, allowed, strict=True)
        of_gradients = zip(self._names(), summed, bounds, strict=True)
        return (
            *(self._expect(name, param.value, bound, unit) for name, param, bound in expected),
            *(self._expect(f"grad of {name}", total, bound, unit) for name, total, bound in of_gradients),
        )
