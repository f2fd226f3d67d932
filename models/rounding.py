"""Rounding errors that several tolerances use, in addition to the unit roundoffs of ``runner.models.workload``."""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING

from .workload import TINY

if TYPE_CHECKING:
    from torch import Tensor

DEVIATIONS = 8.0  # standard deviations of random roundings that are allowed

# The largest relative error of tf32 in an operand of a float32 product. It keeps 10 bits of the fraction. Hardware may
# truncate, which has twice the error of rounding to nearest.
TF32 = 2.0**-10

# Results below this may become 0. float32 arithmetic may flush subnormals to zero on a GPU, so the limit is the
# smallest normal float32. For float16 it is its own smallest number, which is larger.
FLOOR: dict[str, float] = {"float64": TINY["float64"]} | {
    dtype: max(TINY[dtype], 2.0**-126) for dtype in ("float32", "float16", "bfloat16")
}

# Units of error that all elements of an output may have in common. A loop over positive float32 numbers has errors that
# a whole row shares.
COMMON = {"float64": 64.0, "float32": 64.0, "float16": 0.25, "bfloat16": 0.25}


def in_common(value: Tensor, deviation: Tensor, least: float, *, dim: int) -> float:
    """Return the limit of a factor that all elements have in common, which is known much better than any of them.

    ``deviation`` is that of random roundings of each element. Those of the elements along ``dim`` may agree; others are
    independent. ``least`` is allowed beside them.
    """
    squares = float(value.square().sum())
    together = float((deviation * value.abs()).sum(dim).square().sum()) ** 0.5
    return DEVIATIONS * together / squares + least if squares else inf


def in_all(deviation: float, count: int) -> float:
    """Return the limit of the root mean square of ``count`` errors: 1.3 times what it is, and more if they are few."""
    return 1.3 * deviation * (1 + 3 / sqrt(count))
