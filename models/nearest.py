"""The nearest of some centres to each point, as in a step of k-means or in the codebook of a vector-quantized model.

y_i is the index of the least |a_i - b_j|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from .layout import WithLayout
from .rounding import FLOOR, TF32
from .workload import ARITHMETIC, ITEMSIZE, Draw, Expected, Outputs, OutputType, Size

if TYPE_CHECKING:
    from torch import Tensor

    from ..timing.correctness import CheckResult

INDEX_BYTES = 8
APART = 2.0**-10
TOGETHER = 2**25  # distances that the reference computes at once: 256 MiB for each temporary


@dataclass(frozen=True, kw_only=True)
class Nearest(WithLayout):
    """y [n], indices in b [m, d] of the rows that are nearest to the rows of a [n, d]."""

    dtype: Literal["float32", "float16", "bfloat16"]
    n: Size  # points
    m: Size  # centres
    d: Size  # coordinates

    @property
    def output_dtype(self) -> OutputType:
        """Indices are whole numbers."""
        return "int64"

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return a [n, d] and b [m, d].

        A quarter of the centres have a twin about ``APART`` from them in each coordinate. Which one of both is nearer
        takes float32: a product in TF32 is mistaken for many points. Where TF32 is allowed, the others tell a centre
        that is not the nearest. The last point needs the last centre.
        """
        a, b, twins = draw(self.n, self.d), draw(self.m, self.d), self.m // 4
        b[twins : 2 * twins] = b[:twins] + draw(twins, self.d, scale=APART)
        a[-1:] = b[-1:] + draw(1, self.d, scale=APART)
        return a, b

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return the least distances r [n], and how much farther the centre of an output may be.

        Several centres may be nearest up to rounding, so that no index is the only right one. Distances are computed in
        float32, whatever ``dtype``, with an error of y^2 as the workload cdist derives it: c units of |a|^2 + |b|^2.
        Another centre than the nearest may come out first if it is farther by the errors of both, e together. It is at
        most |a| + r from the origin, but for these errors. An error e of y^2 is one of e / y in y, or of sqrt(e) if y
        is smaller than that. Both distances are rounded, after a square root that may be off by two units.
        """
        import torch

        a, b = (stored.double() for stored in inputs)
        of_b = b.square().sum(-1)
        least = torch.empty(2, self.n, dtype=torch.float64, device=a.device)  # squares, and |b|^2 of these centres
        step = max(1, TOGETHER // self.m)
        for start in range(0, self.n, step):
            rows = a[start : start + step]
            square, index = (rows.square().sum(-1, keepdim=True) + of_b - 2 * (rows @ b.mT)).min(-1)
            least[:, start : start + step] = torch.stack([square, of_b[index]])
        value, of_a = least[0].clamp(min=0).sqrt(), a.square().sum(-1)
        reduced = self.tf32 and self.dtype == "float32"
        unit = ARITHMETIC[self.dtype]
        of_squares = (4 + sqrt(self.d) / 2) * unit + (2 * TF32 if reduced else 0.0)
        error = of_squares * (2 * of_a + least[1] + (of_a.sqrt() + value).square()) + FLOOR["float32"]
        rtol = 6 * unit
        text = f"by distances in float64: {rtol:.1e} |r| + e / max(|r|, sqrt(e)), e = {of_squares:.1e} of the squares"
        return (Expected("distance of y", value, error / value.maximum(error.sqrt()), rtol, text),)

    def expected_outputs(self, inputs: tuple[Tensor, ...], *, quick: bool = False) -> Chosen:
        """Return what judges indices by the distances of their centres."""
        a, b = (stored.double() for stored in inputs)
        return Chosen(a, b, self.reference(*inputs))

    def flops(self) -> int:
        """2 n m d, as for the product a b^T that dominates. Norms, differences and comparisons are left out."""
        return 2 * self.n * self.m * self.d

    def bytes_min(self) -> int:
        """Inputs a and b, read once, and output y of int64, written once. The distances are not stored."""
        return (self.n + self.m) * self.d * ITEMSIZE[self.dtype] + self.n * INDEX_BYTES


@dataclass(frozen=True)
class Chosen(Outputs):
    """Judges indices in b by the distances of these rows from those of a, both float64."""

    a: Tensor
    b: Tensor
    expected: tuple[Expected, ...]  # the least distances

    def check(self, outputs: Sequence[object], changed: object = None) -> CheckResult:
        """Compare the distance of each chosen row with the least one."""
        import torch

        from ..timing.correctness import CheckResult, check_outputs, misfit
        from ..timing.unpatched import unpatched

        reason = f"{len(outputs)} outputs where 1 is expected" if len(outputs) != 1 else ""
        reason = reason or misfit(outputs[0], self.expected[0].value, torch.int64)
        if reason:
            return CheckResult(compared=False, tolerance=[self.expected[0].tolerance], reason=f"y: {reason}")
        indices: Any = outputs[0]
        with unpatched():
            least, most = indices.min().item(), indices.max().item()
            if least < 0 or most >= len(self.b):
                reason = f"y: {least if least < 0 else most} is no index below {len(self.b)}"
                return CheckResult(compared=False, tolerance=[self.expected[0].tolerance], reason=reason)
            distances = (self.a - self.b.index_select(0, indices)).square().sum(-1).sqrt()
        return check_outputs((distances,), self.expected, torch.float64)
