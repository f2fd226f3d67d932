"""Roundings that several tolerances allow for, beside the unit roundoffs of ``runner.models.workload``."""

from __future__ import annotations

from runner.models.workload import TINY

# What tf32 does to an operand of a float32 product, at worst: it keeps 10 bits of the fraction. Hardware may truncate,
# which errs twice as far as rounding to nearest.
TF32 = 2.0**-10

# Below this a result may round to nothing. Arithmetic in float32 may flush subnormals to zero on a GPU, so there the
# limit is the smallest normal float32; float16 loses everything earlier than that, at its own smallest number.
FLOOR: dict[str, float] = {"float64": TINY["float64"]} | {
    dtype: max(TINY[dtype], 2.0**-126) for dtype in ("float32", "float16", "bfloat16")
}
