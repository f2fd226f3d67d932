"""Rounding errors of a correct MLP, propagated from layer to layer as variances of the float64 values.

Every stored number is rounded, and every sum of products has an error that is a share of its terms. These errors are
treated as independent, except in rows that are alike. They are propagated to first order (the delta method), forward
through the activations and back through their derivatives. So a bound is large where the network amplifies errors, and
tight elsewhere.

The kink of relu. If an input z of relu has a standard deviation s, its sign may be wrong, and so its derivative. The
probability is taken as exp(-(z / 2s)^2 / 2) / 2, with twice the deviation, since s is an estimate. It is the variance
of the derivative. If z is exact, as with inputs of zeros, the variance is 0.
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
    """A float64 tensor, and the variance of the error of a correct result, of the same shape. 0 means exact."""

    value: Tensor
    variance: Tensor | float = 0.0

    @property
    def mT(self) -> Value:  # noqa: N802 - the name of the tensor's attribute
        """Both transposed."""
        return self._both(lambda tensor: tensor.mT)

    @property
    def column(self) -> Value:
        """The only column, as a vector."""
        return self._both(lambda tensor: tensor[:, 0])

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the error, with the sign of the value."""
        return (self.value * 0 + self.variance).sqrt().copysign(self.value)

    def bound(self, deviations: float) -> Tensor:
        """Return the largest error allowed at each element.

        A share of the mean variance is added for rare events, such as an unlikely flip of relu.
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
    summed: float  # of a sum, relative to its square: if all terms have one sign, partial sums are as large as the sum
    arithmetic: float  # of erf, relative to 1
    smallest: float  # of a number that is too small for its dtype


def gradients(
    x: Value, params: Sequence[Value], activation: str, rounding: Rounding, *, backward: bool
) -> tuple[Value, list[Value]]:
    """Return the output y [batch, dim] of the network, and the gradients of y.mean() for each w and b.

    Each layer is h = activation(h w^T + b). ``params`` are w [dim, dim] and b [dim] of each layer. Without
    ``backward`` there are no gradients.
    """
    h = x
    kept = []
    for w, b in zip(params[::2], params[1::2], strict=True):
        product = _product(h, w.mT, rounding)
        z = _stored(product.value + b.value, product.variance + b.variance, rounding)
        y, slope = _activated(z, activation, rounding)
        kept.append((h, slope, w))
        h = y
    y, computed = h, list[Value]()
    dy, ones = Value(y.value.new_full(y.value.shape, 1 / y.value.numel())), Value(y.value.new_ones(len(y.value), 1))
    for layer, (h, slope, w) in reversed(list(enumerate(kept if backward else []))):
        dz = _times(dy, slope, rounding)
        computed = [_over_rows(dz, h, rounding), _over_rows(dz, ones, rounding).column, *computed]
        if layer:
            dy = _product(dz, w, rounding)
    return y, computed


def _stored(value: Tensor, variance: Tensor | float, rounding: Rounding) -> Value:
    return Value(value, variance + rounding.stored * value.square() + rounding.smallest)


def _product(a: Value, b: Value, rounding: Rounding) -> Value:
    """Return the matrix product of ``a`` and ``b``."""
    squares = a.value.square()
    variance = (a.variance + rounding.product * squares) @ b.value.square()
    if not isinstance(b.variance, float):
        variance += squares @ b.variance
    value = a.value @ b.value
    return _stored(value, variance + rounding.summed * value.square(), rounding)


def _over_rows(dz: Value, h: Value, rounding: Rounding) -> Value:
    """Return dz^T h, a sum over rows.

    In a deep net with gelu, rows become alike, and so do their errors, which then do not cancel. So the variance
    includes the sum of errors that have the signs of their values.
    """
    total = _product(dz.mT, h, rounding)
    alike = (dz.deviation.mT @ h.value).square() + (dz.value.mT @ h.deviation).square()
    return Value(total.value, total.variance + alike)


def _times(a: Value, b: Value, rounding: Rounding) -> Value:
    """Return the elementwise product. ``b`` is rounded before it is used."""
    value = a.value * b.value
    variance = a.variance * (b.value.square() + b.variance) + (a.value.square() * b.variance)
    return _stored(value, variance + rounding.stored * value.square(), rounding)


def _activated(z: Value, activation: str, rounding: Rounding) -> tuple[Value, Value]:
    """Return the output of the activation, and its derivative."""
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
