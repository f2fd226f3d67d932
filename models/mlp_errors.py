"""Which errors a correct MLP may carry: propagated from layer to layer, as variances beside the float64 values.

Every stored number is rounded, and every sum of products errs by a share of its terms; these errors are taken to be
independent, but in rows that are alike, and followed to first order (the delta method), forward through the activations
and back through their derivatives. So a bound grows where the network makes errors grow, and is tight where nothing
blurs the result.

The kink of relu. Where an input z of relu has a deviation s, its derivative may come out on the other side of 0. The
chance that it does is taken to be exp(-(z / 2s)^2 / 2) / 2, that is with twice the deviation, since s is an estimate;
this is the variance of the derivative. Where z is exact, as with zeros throughout, there is no doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Value:
    """A tensor in float64, and the variance of the error that a correct one has, of its shape; 0: it is exact."""

    value: Tensor
    variance: Tensor | float = 0.0

    @property
    def mT(self) -> Value:  # noqa: N802 - as of a tensor
        """Both transposed."""
        return self._both(lambda tensor: tensor.mT)

    @property
    def column(self) -> Value:
        """The only one, as a vector."""
        return self._both(lambda tensor: tensor[:, 0])

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the error, with the sign of the value."""
        return (self.value * 0 + self.variance).sqrt().copysign(self.value)

    def bound(self, deviations: float) -> Tensor:
        """The largest error allowed at each element.

        A share of the mean variance is added, for what happens to few elements: a flip of relu that was unlikely.
        """
        assert not isinstance(self.variance, float)
        return deviations * (self.variance + self.variance.mean() / 4).sqrt()

    def _both(self, view: Callable[[Tensor], Tensor]) -> Value:
        return Value(view(self.value), self.variance if isinstance(self.variance, float) else view(self.variance))


@dataclass(frozen=True)
class Rounding:
    """Variances of the errors that one operation adds."""

    stored: float  # of a stored number, relative to its square
    product: float  # of a term of a sum of products, relative to its square
    summed: float  # of a sum, relative to its square: where all terms have one sign, the part sums are as large
    arithmetic: float  # of erf, relative to 1
    smallest: float  # of a number that is too small for its type


def gradients(
    x: Tensor, params: Sequence[Value], activation: str, rounding: Rounding, *, backward: bool
) -> tuple[Value, list[Value]]:
    """Output y [batch, dim] of h = activation(h w^T + b), layer after layer, and of y.mean() the gradient of each w, b.

    ``params`` are w [dim, dim] and b [dim] of each layer. No gradients unless ``backward``.
    """
    h = Value(x)
    kept = []
    for w, b in zip(params[::2], params[1::2], strict=True):
        product = _product(h, w.mT, rounding)
        z = _stored(product.value + b.value, product.variance + b.variance, rounding)
        y, slope = _activated(z, activation, rounding)
        kept.append((h, slope, w))
        h = y
    y, found = h, list[Value]()
    dy, ones = Value(y.value.new_full(y.value.shape, 1 / y.value.numel())), Value(y.value.new_ones(len(y.value), 1))
    for layer, (h, slope, w) in reversed(list(enumerate(kept if backward else []))):
        dz = _times(dy, slope, rounding)
        found = [_over_rows(dz, h, rounding), _over_rows(dz, ones, rounding).column, *found]
        if layer:
            dy = _product(dz, w, rounding)
    return y, found


def _stored(value: Tensor, variance: Tensor | float, rounding: Rounding) -> Value:
    return Value(value, variance + rounding.stored * value.square() + rounding.smallest)


def _product(a: Value, b: Value, rounding: Rounding) -> Value:
    """Matrix product."""
    squares = a.value.square()
    variance = (a.variance + rounding.product * squares) @ b.value.square()
    if not isinstance(b.variance, float):
        variance += squares @ b.variance
    value = a.value @ b.value
    return _stored(value, variance + rounding.summed * value.square(), rounding)


def _over_rows(dz: Value, h: Value, rounding: Rounding) -> Value:
    """dz^T h, a sum over rows. A deep net of gelu forgets its input: its rows become alike, and so do their errors.

    They then do not cancel. So what errors would add up to that have the signs of their values is allowed as well.
    """
    total = _product(dz.mT, h, rounding)
    alike = (dz.deviation.mT @ h.value).square() + (dz.value.mT @ h.deviation).square()
    return Value(total.value, total.variance + alike)


def _times(a: Value, b: Value, rounding: Rounding) -> Value:
    """Product of the elements; of the second, too, a rounded one is used."""
    value = a.value * b.value
    variance = a.variance * (b.value.square() + b.variance) + (a.value.square() * b.variance)
    return _stored(value, variance + rounding.stored * value.square(), rounding)


def _activated(z: Value, activation: str, rounding: Rounding) -> tuple[Value, Value]:
    """Output of the activation, and its derivative."""
    if activation == "relu":
        y, slope, doubt = z.value.relu(), (z.value > 0).double(), _chance_to_flip(z)
    else:
        phi, density = (1 + (z.value / sqrt(2)).erf()) / 2, (-z.value.square() / 2).exp() / sqrt(2 * pi)
        y, slope = z.value * phi, phi + z.value * density
        curvature = density * (2 - z.value.square())
        doubt = curvature.square() * z.variance + rounding.arithmetic  # 1 + erf cancels in the left tail
    of_y = (slope.square() + doubt) * z.variance + rounding.arithmetic * z.value.square()
    return _stored(y, of_y, rounding), Value(slope, doubt)


def _chance_to_flip(z: Value) -> Tensor:
    assert not isinstance(z.variance, float)
    deviations = z.value.square() / z.variance.clamp(min=1e-300)
    return ((-deviations / 8).exp() / 2).where(z.variance > 0, 0.0)
