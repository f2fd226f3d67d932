"""A linear layer whose weight is stored as int8, as when a language model writes one token after the other.

y = x w^T, with w_jk = weight_jk scale_jg, where g is the group of k. Only the weight is quantized; x is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from ..timing.call import Call
from .layout import WithLayout
from .rounding import COMMON, FLOOR, TF32, in_all, in_common
from .workload import ARITHMETIC, ITEMSIZE, UNIT, Draw, Expected, Size, options_for

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 127  # of the quantized weight: symmetric, without -128


@dataclass(frozen=True, kw_only=True)
class LinearInt8(WithLayout):
    """y [m, n] of x [m, k], weight [n, k] int8 and scale [n, groups]; all but the weight are of ``dtype``."""

    dtype: Literal["float32", "float16", "bfloat16"]
    m: Size  # tokens
    k: Size  # features in
    n: Size  # features out
    group: Annotated[int, "at least 0"]  # neighbours in a row of the weight that share a scale; 0: the whole row

    @property
    def groups(self) -> int:
        """Scales of a row. The last group may be shorter."""
        return -(-self.k // self.group) if self.group else 1

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x [m, k], weight [n, k] int8, scale [n, groups], and the weight in ``dtype`` [n, k].

        The weight is drawn, and quantized so that the largest of each group becomes 127. The last tensor is weight
        times scale, rounded to ``dtype``. It goes to implementations with an argument ``dense``, and no others.
        """
        import torch

        x, drawn = draw(self.m, self.k), draw(self.n, self.k, scale=1 / sqrt(self.k)).float()
        padded = torch.nn.functional.pad(drawn, (0, self._width() * self.groups - self.k))
        largest = padded.view(self.n, self.groups, self._width()).abs().amax(-1)
        scale = (largest / LARGEST).clamp(min=2.0**-24).to(x.dtype)
        each = self._of_each(scale.float())
        weight = (drawn / each).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        return x, weight, scale, (weight * each).to(x.dtype)

    def _width(self) -> int:
        return self.group or self.k

    def _of_each(self, scale: Tensor) -> Tensor:
        """Return the scale of each weight, [n, k]."""
        return scale.repeat_interleave(self._width(), 1)[:, : self.k]

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Bind ``function`` to x, weight and scale; to the weight in ``dtype`` too, if it names ``dense``."""
        *given, dense = inputs
        options = options_for(function, {"group": self.group, "dense": dense}, len(given))
        return Call(run=lambda: (function(*given, **options),))

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y [m, n] of the weight times scale in float64.

        The tolerance is that of matmul, with w = (sum_k x_ik^2 w_jk^2)^(1/2), plus what quantized weights add:

            weights    an implementation may round weight times scale to ``dtype`` before it multiplies. These roundings
                       are independent: their sum has a standard deviation of at most 0.6 units of w, and 3 are allowed
            storing y  one that multiplies x by the integers rounds their sum, and then its product with the scale

        All these errors have a root mean square of about one unit of w in 16 bits; in TF32 a quarter of the largest.
        So two more limits apply, to the factor that all y have in common and to the rms of all errors. A scale with the
        divisor 128 for 127 exceeds the one, and x in int8, which has an rms error of 2 units, the other.

        The automatic tolerance would hold about ten float64 tensors of the size of the weight.
        """
        x, weight, scale, _ = (stored.double() for stored in inputs)
        weight = weight.mul_(self._of_each(scale))
        value = x @ weight.mT
        walk = (x.square() @ weight.square_().mT).sqrt_()
        reduced = 2 * TF32 if self.tf32 and self.dtype == "float32" else 0.0
        unit, arithmetic = UNIT[self.dtype], ARITHMETIC[self.dtype]
        of_walk = 6 * sqrt(self.k) * arithmetic + (6 if unit > arithmetic else 0) * unit + 3 * unit + reduced
        rtol = 2 * unit + arithmetic + reduced
        deviation = sqrt(self.k) / 2 * arithmetic + unit + reduced / 4
        common = in_common(value, deviation * walk, COMMON[self.dtype] * unit + reduced, dim=0)  # errors of a weight
        rms = in_all(deviation / of_walk, value.numel())
        text = f"{rtol:.1e} |r| + {of_walk:.1e} sqrt(x^2 w^2); {common:.1e} in common, rms {rms:.2g} of it"
        return (Expected("y", value, of_walk * walk + FLOOR[self.dtype], rtol, text, rms=rms, common=common),)

    def options(self) -> Mapping[str, object]:
        """Return the number of neighbours that share a scale."""
        return {"group": self.group}

    def flops(self) -> int:
        """2 m n k, as of a matrix product. Multiplications by the scale are left out."""
        return 2 * self.m * self.n * self.k

    def bytes_min(self) -> int:
        """x, the int8 weight and its scales, read once, and y, written once.

        ``impl=unquantized`` reads 2 or 4 bytes of each weight instead of 1, so its bytes per second are higher.
        """
        floats = self.m * (self.k + self.n) + self.n * self.groups
        return floats * ITEMSIZE[self.dtype] + self.n * self.k
