"""The power with which a figure grows over a size."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, linear_regression

from ..measure.columns import column_of
from ..records.figures import figure
from ..timing.statistics import t_975

FLAT = 0.5  # a time is called flat where it grows with a lower power
STEADY = 0.3  # a stretch of sizes has one exponent if those between neighbors differ by less
LINEAR = (0.7, 1.3)  # exponents for which the cost of one more is told
VAGUE = 1.0  # half the width of an interval with which an exponent says nothing
FEWEST = 3  # sizes


def power_law(
    name: str, column: str, called: str, xs: Sequence[float], ys: Sequence[float], shares: Sequence[float]
) -> tuple[str, str]:
    """Return with which power of ``name`` the ``ys`` grow, and up to where they are flat; or "", and why not.

    The exponent is fitted to the largest ``xs``, as far down as it stays the same. Its interval is that of the fit, or
    the one that follows from those of the ``ys`` if that is wider. ``shares``: half of these, relative to the ``ys``.
    """
    if len(xs) < FEWEST:
        return "", f"it is known at {len(xs)} values, and {FEWEST} are needed"
    logs = [math.log(x) for x in xs], [math.log(y) for y in ys]
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(zip(*logs, strict=True))]
    halves = [
        math.hypot(near, far) / (x2 - x1)
        for (near, far), (x1, x2) in zip(pairwise(shares), pairwise(logs[0]), strict=True)
    ]
    begin = len(slopes) - 1
    while begin and halves[begin - 1] <= VAGUE:
        if abs(slopes[begin - 1] - slopes[-1]) >= STEADY + math.hypot(halves[begin - 1], halves[-1]):
            break
        begin -= 1
    exponent, half = _fit(logs[0][begin:], logs[1][begin:], shares[begin:])
    around = f"{exponent - half:.2f} to {exponent + half:.2f}"
    if half > VAGUE:
        return "", f"its 95 % interval would be {around}"
    text = f"from {name}={xs[begin]:g} to {xs[-1]:g}, {called} grows as {name}^{exponent:.2f}"
    text += f" (95 % interval {around})" if half else ""
    if begin and max(halves[:begin]) > VAGUE:
        return f"{text}; below, the times are too uncertain for an exponent", ""
    if begin:
        text += f"; below, the exponents between neighbors are {', '.join(f'{slope:.2f}' for slope in slopes[:begin])}"
        flat = next((place for place, slope in enumerate(slopes) if slope + halves[place] >= FLAT), 0)
        return f"{text}, so it is flat up to {name}={xs[flat]:g}" if flat else text, ""
    if LINEAR[0] <= exponent <= LINEAR[1]:
        more, half = _fit(xs, ys, [share * y for share, y in zip(shares, ys, strict=True)])
        unit = column_of(column).unit
        text += f"; one more costs {figure(more, unit, 3)}" + (f" (± {figure(half, unit, 2)})" if half else "")
    return text, ""


def _fit(xs: Sequence[float], ys: Sequence[float], halves: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the straight line through the points, and half of its 95 % interval; 0 if it is not known.

    ``halves``: half of the interval of each y.
    """
    slope, intercept = linear_regression(xs, ys)
    mean, freedom = fmean(xs), len(xs) - 2
    squares = sum((x - mean) ** 2 for x in xs)
    own = math.hypot(*((x - mean) * half for x, half in zip(xs, halves, strict=True))) / squares
    if freedom < 1:
        return slope, own
    residual = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, max(own, t_975(freedom) * math.sqrt(residual / freedom / squares))
