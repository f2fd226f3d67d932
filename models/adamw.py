"""A step of AdamW over the parameters of a decoder, in place: what an optimizer does between two backward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..timing.call import Call
from .rounding import COMMON, FLOOR
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, DType, Expected, Size, Workload, options_for

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AdamW(Workload):
    """Parameters p, gradients g and moments m and v of a decoder: two vocabularies, and per layer seven matrices."""

    layers: Size
    dim: Size  # features
    kv: Size  # features of keys, and of values: fewer than dim if several heads share them
    hidden: Size  # features of the feed-forward network
    vocab: Size  # rows of the embedding, and of the output
    moments: Literal["same", "float32"]  # dtype of m and v; same: that of the parameters
    step: Size  # number of this step, for the bias correction
    lr: Annotated[float, "above 0"]
    beta1: Annotated[float, "at least 0"]
    beta2: Annotated[float, "at least 0"]
    eps: Annotated[float, "at least 0"]
    weight_decay: Annotated[float, "at least 0"]

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed; give a number below 1")

    @property
    def moments_dtype(self) -> DType:
        """Storage type of m and v."""
        return "float32" if self.moments == "float32" else self.dtype

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters, as in Llama: no biases, and two norms per layer."""
        dim, kv, hidden = self.dim, self.kv, self.hidden
        attention = [(dim,), (dim, dim), (kv, dim), (kv, dim), (dim, dim)]
        layer = [*attention, (dim,), (hidden, dim), (hidden, dim), (dim, hidden)]
        return [(self.vocab, dim), *(layer * self.layers), (dim,), (self.vocab, dim)]

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return all p, all g, all m, then all v, which are squares.

        The standard deviation of p is 0.02, as models begin; those of g, m and v^(1/2) are 1, so that most updates are
        near the learning rate. Every eighth number of g, m and v^(1/2) is so small that ``eps`` counts. Float16 has no
        such numbers: there v^(1/2) is at least 2^-8, since a step in float16 divides by 0 where v rounds to 0.
        """
        import torch

        shapes, stored = self.shapes(), getattr(torch, self.moments_dtype)
        half = self.moments_dtype == "float16"
        small = 1.0 if half else max(self.eps, 1e-12) * sqrt(1 - self.beta2**self.step)

        def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            x = draw(*shape).to(dtype)
            x.view(-1)[::8] *= small
            return x

        return (
            *(draw(*shape, scale=0.02) for shape in shapes),
            *(drawn(shape, getattr(torch, self.dtype)) for shape in shapes),
            *(drawn(shape, stored) for shape in shapes),
            *(drawn(shape, stored).abs_().clamp_(min=2**-8 if half else 0).square_() for shape in shapes),
        )

    def options(self) -> Mapping[str, object]:
        """Return the step and the hyperparameters."""
        names = "step", "lr", "beta1", "beta2", "eps", "weight_decay"
        return {name: getattr(self, name) for name in names}

    def call(self, function: Callable[..., object], inputs: tuple[Tensor, ...]) -> Call:
        """Return the step, whose outputs are the parameters and moments of ``inputs`` themselves, p, m and v.

        The runner restores inputs that a call has changed, before each timed call.
        """
        options = options_for(function, self.options(), len(inputs))
        count = len(inputs) // 4
        state = inputs[:count] + inputs[2 * count :]

        def run() -> tuple[Tensor, ...]:
            function(*inputs, **options)
            return state

        return Call(run)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return all p, m and v after the step.

        The tolerance allows a rounding of each factor and of each result of an elementary operation, as without fusion:
        four of m and of v, the errors of both in the update of p, and nine more of that. The decays and their powers
        may be rounded before they are subtracted from 1. A step without an update, weight decay or bias correction is
        rejected wherever the parameter's type can hold the difference; it is small beside p, so a tolerance by the size
        of p or its tensor accepts it.
        """
        count = len(inputs) // 4
        steps = [self._step(*inputs[place::count]) for place in range(count)]
        return tuple(
            self._expect(f"{name}{place + 1}", *steps[place][at])
            for at, name in enumerate("pmv")
            for place in range(count)
        )

    def _step(self, *tensors: Tensor) -> tuple[tuple[Any, ...], ...]:
        """Return value, bound and dtype of p, m and v after the step; of p also the update, and its common error."""
        p, g, m, v = (tensor.double() for tensor in tensors)
        stored, unit, floor = UNIT[self.dtype], UNIT[self.moments_dtype], 2 * FLOOR[self.moments_dtype]
        (beta1, first, common1), (beta2, second, common2) = map(self._corrected, (self.beta1, self.beta2))
        rate, keep, rounded = self.lr / first, 1 - self.lr * self.weight_decay, ARITHMETIC[self.moments_dtype]
        error_of_m = 4 * unit * (m.abs() + (1 - beta1) * g.abs()) + rounded * g.abs() + floor
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g.square()
        error_of_v = 4 * unit * v + rounded * g.square() + floor
        divisor = (v / second).sqrt() + self.eps
        # The error of a square root is at most that of v over v^(1/2), and at most its root, if v is near 0.
        error_of_root = ((error_of_v / v.sqrt()).minimum(error_of_v.sqrt())) / sqrt(second)
        update = rate * m / divisor
        relative = 6 * unit + (error_of_root + 3 * unit * divisor) / divisor + common1 + common2 / 2
        error_of_p = update.abs() * relative + rate * error_of_m / divisor + (stored + 2 * rounded) * keep * p.abs()
        moved = keep * p - update
        error_of_p += stored * moved.abs() + FLOOR[self.dtype]
        # Rounding p has errors that are independent of the update, those of the update's factors partly agree.
        # Large updates count less, since most of their error is of other kinds.
        along = -update / (1 + (update / self.lr).square())
        squares = float(along.square().sum())
        common = 4 * float((error_of_p * along).square().sum() / 3) ** 0.5 / squares if squares else inf
        common += (COMMON[self.dtype] + 1) * max(unit, stored) + common1 + common2 / 2
        return (
            (moved, error_of_p, self.dtype, along, common),
            (m, error_of_m, self.moments_dtype),
            (v, error_of_v, self.moments_dtype),
        )

    def _corrected(self, beta: float) -> tuple[float, float, float]:
        """Return ``beta``, 1 - beta^step, and the relative error of that if beta and its power are rounded.

        torch's fused kernel rounds them to float32, where 1 - 0.999 has an error of 1e-5.
        """
        power = beta**self.step
        return beta, 1 - power, ARITHMETIC[self.moments_dtype] * (1 + self.step * power) / (1 - power)

    def _expect(
        self, name: str, value: Tensor, bound: Tensor, dtype: DType, along: Tensor | None = None, common: float = inf
    ) -> Expected:
        tolerance = f"a rounding to {dtype} of each elementary operation"
        tolerance += f"; {common:.1e} of the update in common" if along is not None else ""
        return Expected(name, value, bound, 0.0, tolerance, common=common, along=along, dtype=dtype)

    def flops(self) -> int:
        """14 per element: decay 1, m 3, v 4, divisor 3 and update 3."""
        return 14 * self.elements

    def bytes_min(self) -> int:
        """All p, g, m and v, read once, and all p, m and v, written once."""
        return self.elements * (3 * ITEMSIZE[self.dtype] + 4 * ITEMSIZE[self.moments_dtype])

    @property
    def elements(self) -> int:
        """Number of parameters, counted as numbers."""
        return sum(map(prod, self.shapes()))


class Updates:
    """What AdamW subtracts from parameters, beside the weight decay, from moments that are 0 at first."""

    def __init__(self, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
        self._lr, self._betas, self._eps = lr, (beta1, beta2), eps
        self._step = 0
        self._moments: list[tuple[Tensor, ...]] = []  # m, v, and of the errors of g: the first, and the second

    def next(self, gradients: Sequence[Tensor], bounds: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the update of each parameter, and a bound of its error, in float64.

        ``bounds`` are those of the errors of ``gradients``. The root of v is a norm of the gradients so far, so it
        changes by the norm of their errors at most. The quotient of m and that root has a largest value, by the
        inequality of Cauchy and Schwarz, which limits the error where a gradient may have either sign.
        """
        beta1, beta2 = self._betas
        self._step += 1
        before = self._moments or [(gradient * 0,) * 4 for gradient in gradients]
        self._moments = [
            (
                beta1 * m + (1 - beta1) * gradient,
                beta2 * v + (1 - beta2) * gradient.square(),
                beta1 * error + (1 - beta1) * bound,
                beta2 * squared + (1 - beta2) * bound.square(),
            )
            for (m, v, error, squared), gradient, bound in zip(before, gradients, bounds, strict=True)
        ]
        first, second = 1 - beta1**self._step, 1 - beta2**self._step
        weights = [((1 - beta1) * beta1**k / first) ** 2 / ((1 - beta2) * beta2**k / second) for k in range(self._step)]
        most, changes = sqrt(sum(weights)), []
        for m, v, error, squared in self._moments:
            divisor, wrong = (v / second).sqrt() + self._eps, (squared / second).sqrt()
            ratio = m / first / divisor
            bound = (error / first + ratio.abs() * wrong) / (divisor - wrong).clamp(min=self._eps)
            changes.append((self._lr * ratio, self._lr * bound.minimum(ratio.abs() + most)))
        return changes
