"""What an output may differ by from its float64 reference: limits that follow from draws with rounding errors.

An output is right if all of these hold, where r is the reference in float64, e the reference in its own types, s the
standard deviation of the draws around r, and u the unit roundoff of the output's type:

    each element   |y - r| <= 16 s + G u |r| + 4 o + tiny, where o is |e - r| beyond one rounding:
                   max(|e - r| - u |r|, 0). Twice as many may exceed it as do in a fresh draw
    all elements   the rms of (y - r) / z is at most 2.5, z^2 = s^2 + (g u r)^2 + o^2 + tiny^2
    scale          the part of y - r that is in proportion to r is small: in all of the tensor, in each of 16 parts, in
                   each row and each column. Here errors of rounding cancel, and wrong factors do not
    integers       each is what r, e or a draw has; as many others as a fresh draw has

All is computed with torch's operators themselves, since an implementation may replace functions of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from ..timing.bound import aten
from ..timing.correctness import CheckResult, element_index
from .rounding import UNIT

CAP, RMS, SCALE, OWN, OWN_SCALE = 16.0, 2.5, 8.0, 4.0, 1.5
# By whether the type has at most 2 bytes: G, g and the least limit of a scale error, in unit roundoffs. A loop over
# positive float32 numbers has errors that a row shares, hence 64.
ROUNDED = {True: (2.0, 0.6, 0.25), False: (16.0, 2.0, 64.0)}
# Results below the smallest normal number may be flushed to zero, except in these types.
SUBNORMAL = {torch.float16: 2.0**-24, torch.float8_e4m3fn: 2.0**-9, torch.float8_e5m2: 2.0**-16}
FULL = 8  # draws from which the spread of each element is known well enough alone
ADJACENT = 16  # with fewer draws, elements whose spread is used together
# Where a function cuts off, as relu does, an element may be one that no draw changes and another would. Such a value is
# zero or, after a bias, the least or greatest of its row or column. It has at least this share of the mean variance of
# the others in its row or in its column, whichever is less.
UNSEEN = 1 / 16
PARTS = 16
CHUNK = {"cpu": 2**19}  # elements in work at once: in the cache of a CPU
CHUNK_ELSEWHERE = 2**25
HUGE = 1e150
INFINITE = 1e100  # what is larger comes from HUGE


class Floats:
    """The limits of an output of floating point numbers."""

    def __init__(self, value: Tensor, own: Tensor) -> None:
        """Start without draws.

        Args:
            value: the reference in float64.
            own: the reference in its own types; what it gives is right.

        """
        self.shape, self.dtype = tuple(value.shape), own.dtype
        self._exact, self._own = _matrix(value), _matrix(own)
        self._value = _finite(self._exact)  # r, and 0 where it is not finite
        self._variance = aten.zeros_like(self._value)
        self._draws, self._spare = 0, 0
        self._bound, self._rms, self._floor = ROUNDED[own.dtype.itemsize <= 2]
        self._unit = UNIT[own.dtype]
        self._tiny = 2 * SUBNORMAL.get(own.dtype, torch.finfo(own.dtype).tiny)
        self._scales: dict[str, Tensor] = {}  # of sums of (y - r) r: their variances, later their limits

    def add(self, draw: Tensor) -> None:
        """Count one more draw."""
        self._draws += 1
        scales = _Scales(self._value)
        for place, value in _chunks(self._value):
            error = self._error_of(draw, place)
            aten.addcmul_(aten.slice(self._variance, 0, *place), error, error)
            scales.add(place, aten.mul(error, value))
        for name, block in scales.blocks().items():
            self._scales[name] = aten.add(aten.square(block), self._scales.get(name, 0.0))

    def close(self) -> None:
        """Turn what the draws add up to into limits."""
        stored = torch.float64 if self.dtype == torch.float64 else torch.float32  # of limits, which need few digits
        self._cap, self._spread = (aten.empty_like(self._value, dtype=stored) for _ in range(2))
        cut = _cut(self._value)
        columns = _mean_of_others(self._variance, cut, 0) / self._draws
        squared, fourth, size, own = (_Scales(self._value) for _ in range(4))
        for place, value in _chunks(self._value):
            variance = aten.div(aten.slice(self._variance, 0, *place), self._draws)
            if self._draws < FULL:
                self._pool(variance)
            error, square = self._error_of(self._own, place), aten.square(value)
            self._allow_for_cuts(variance, columns, aten.slice(cut, 0, *place))
            self._limit(place, variance, aten.abs(value), aten.abs(error))
            squared.add(place, square)
            fourth.add(place, aten.square(square))
            size.add(place, aten.abs(value))
            own.add(place, aten.mul(value, error))
        del self._variance
        self._squares = squared.blocks()
        sums = [each.blocks() for each in (squared, fourth, size, own)]
        for name, block in self._scales.items():
            self._scales[name] = self._scale_limit(block / self._draws, *(blocks[name] for blocks in sums))

    def _allow_for_cuts(self, variance: Tensor, columns: Tensor, cut: Tensor) -> None:
        """Give elements of some rows that may be ``cut`` off a share of the variance of their row and column."""
        shared = _finite(aten.clamp(_mean_of_others(variance, cut, 1), None, columns))
        aten.copy_(variance, aten.where(cut, aten.clamp(variance, aten.mul(shared, UNSEEN)), variance))

    def _limit(self, place: tuple[int, int], variance: Tensor, size: Tensor, own: Tensor) -> None:
        """Set what each element of some rows may differ by, and the standard deviation that is to be expected."""
        own = aten.clamp(aten.sub(own, aten.mul(size, self._unit)), 0.0)
        cap = aten.add(aten.mul(size, self._bound * self._unit), aten.mul(own, OWN))
        cap = aten.add(aten.add(cap, aten.sqrt(variance), alpha=CAP), self._tiny)
        aten.copy_(aten.slice(self._cap, 0, *place), cap)
        squares = aten.addcmul(aten.addcmul(variance, own, own), size, size, value=(self._rms * self._unit) ** 2)
        spread = aten.clamp(aten.sqrt(squares), self._tiny)  # the square of a tiny number is 0
        aten.copy_(aten.slice(self._spread, 0, *place), spread)

    def _pool(self, variance: Tensor) -> None:
        """Let adjacent elements share what few draws say about each of them."""
        width = variance.shape[1] // ADJACENT * ADJACENT or variance.shape[1]
        whole = aten.slice(variance, 1, 0, width)
        groups = aten.reshape(whole, [variance.shape[0], -1, min(ADJACENT, width)])
        shared = aten.reshape(aten.expand(aten.mean_dim(groups, [2], True), groups.shape), whole.shape)
        aten.copy_(whole, aten.lerp(shared, whole, self._draws / FULL))

    def _scale_limit(self, variance: Tensor, squares: Tensor, fourth: Tensor, size: Tensor, own: Tensor) -> Tensor:
        """Return the limit of |sum (y - r) r| for each block of one kind."""
        if self._draws < FULL:  # blocks of a kind share what few draws say
            relative = _finite(aten.div(variance, aten.square(squares)))
            shared = aten.mul(aten.mean(relative), aten.square(squares))
            variance = aten.lerp(shared, variance, self._draws / FULL)
        rounding = aten.add(fourth * (self._rms * self._unit) ** 2, squares * self._tiny**2)
        limit = SCALE * aten.sqrt(aten.add(variance, rounding)) + self._floor * self._unit * squares
        found: Tensor = limit + OWN_SCALE * aten.abs(own) + self._tiny * size
        return found

    def probe(self, draw: Tensor) -> None:
        """Allow for what a draw that made no limit has beyond them: results that jump, such as those of ``round``."""
        beyond = 0
        for place, _ in _chunks(self._value):
            error = aten.abs(self._error_of(draw, place))
            beyond += aten.item(aten.sum(aten.gt(error, aten.slice(self._cap, 0, *place))))
        self._spare = max(self._spare, 2 * beyond)

    def _error_of(self, draw: Tensor, place: tuple[int, int]) -> Tensor:
        """Return d - r of some rows, 0 where one of them is not finite."""
        error: Tensor = aten.sub(aten.slice(_matrix(draw), 0, *place), aten.slice(self._exact, 0, *place))
        return error if isfinite(aten.item(aten.sum(error))) else _finite(error)

    def judge(self, output: Tensor, factor: float = 1.0, *, quick: bool = False) -> CheckResult:
        """Return how ``output``, of the shape and type of the reference, differs; ``quick``: whether it does.

        ``factor`` widens all limits.
        """
        if not output.numel():
            return CheckResult()
        result, walk, wrong, where = CheckResult(), 0.0, 0, 0
        largest = aten.zeros([0], dtype=torch.float64, device=output.device)
        scales, matrix = _Scales(self._value), _matrix(output)
        for place, value in _chunks(self._value):
            cap = aten.mul(aten.slice(self._cap, 0, *place), factor)
            error = self._error(aten.slice(matrix, 0, *place), place, cap)
            size = aten.abs(error)
            ratio = aten.reshape(aten.div(size, cap), [-1])
            top, at = (aten.item(each) for each in aten.max_dim(ratio, 0))
            wrong += aten.item(aten.sum(aten.gt(ratio, 1))) if top > 1 else 0
            if quick and wrong > self._spare:
                return CheckResult(reason="wrong")
            where = place[0] * value.shape[1] + at if top > result.err_over_tol else where
            result.err_over_tol = max(result.err_over_tol, top)
            if self._spare:
                ratio = aten.cat([largest, ratio])
                largest, _ = aten.topk(ratio, min(self._spare + 1, ratio.numel()))
            walked = aten.reshape(aten.div(error, aten.slice(self._spread, 0, *place)), [-1])
            walk += min(1e300, aten.item(aten.dot(walked, walked)))
            scales.add(place, aten.mul(error, value))
            if not quick:
                result.max_abs_err = max(result.max_abs_err, aten.item(aten.max(size)))
                small = aten.le(aten.abs(value), cap)
                relative = aten.masked_fill(aten.div(size, aten.abs(value)), small, 0.0)
                result.max_rel_err = max(result.max_rel_err, aten.item(aten.max(relative)))
        if self._spare:
            result.err_over_tol = aten.item(aten.select(largest, 0, -1)) if largest.numel() > self._spare else 0.0
        if wrong > self._spare:
            result.reason = self._worst_element(output, where, wrong)
        self._of_all(result, sqrt(walk / output.numel()) / (RMS * factor), "the rms of all errors is {:.3g} times")
        self._of_scale(result, scales.blocks(), factor)
        for name in ("max_abs_err", "max_rel_err", "err_over_tol"):
            if getattr(result, name) >= INFINITE:
                setattr(result, name, inf)
        return result

    def _error(self, y: Tensor, place: tuple[int, int], cap: Tensor) -> Tensor:
        """Return y - r, 0 where infinities and NaN agree, and a huge number where they do not."""
        value, own = (aten.slice(each, 0, *place) for each in (self._exact, self._own))
        error: Tensor = aten.sub(y, value)
        if isfinite(aten.item(aten.sum(error))):
            return error
        own, y = (aten._to_copy(each, dtype=torch.float64) for each in (own, y))
        nan = aten.logical_or(aten.isnan(value), aten.isnan(own))
        overflows = aten.ge(aten.add(aten.abs(value), cap), torch.finfo(self.dtype).max)
        infinite = aten.logical_and(aten.isinf(y), aten.logical_and(overflows, aten.eq(aten.sign(y), aten.sign(value))))
        same = aten.logical_or(aten.eq(y, value), aten.logical_and(aten.isnan(y), nan))
        same = aten.logical_or(same, aten.logical_or(infinite, aten.logical_and(aten.isinf(y), aten.eq(y, own))))
        error = aten.nan_to_num(aten.masked_fill(error, same, 0.0), HUGE, HUGE, -HUGE)
        return aten.clamp(error, -HUGE, HUGE)  # type: ignore[no-any-return]

    def _worst_element(self, output: Tensor, where: int, wrong: int) -> str:
        index = element_index(int(where), self.shape)
        got, want = (
            aten.item(aten.select(aten.reshape(_matrix(tensor), [-1]), 0, where)) for tensor in (output, self._exact)
        )
        return f"{wrong} of {output.numel()} elements wrong, worst at {index}: got {got:.6g}, want {want:.6g}"

    def _of_all(self, result: CheckResult, ratio: float, text: str) -> None:
        result.err_over_tol = max(result.err_over_tol, ratio)
        if ratio > 1 and not result.reason:
            result.reason = text.format(ratio) + " what rounding explains"

    def _of_scale(self, result: CheckResult, blocks: Mapping[str, Tensor], factor: float) -> None:
        for name, block in blocks.items():
            limit = aten.mul(self._scales[name], factor)
            top, at = aten.max_dim(aten.nan_to_num(aten.div(aten.abs(block), limit), 0.0, inf, 0.0), 0)
            place = aten.item(at)
            by = 1 + aten.item(aten.select(aten.div(block, self._squares[name]), 0, place))
            self._of_all(
                result, aten.item(top), f"{name.format(place)} is {by:.6g} times the reference, {{:.3g}} times"
            )


class Integers:
    """The limits of an output of integers or booleans: of indices, ties go either way."""

    def __init__(self, value: Tensor, own: Tensor) -> None:
        """Start without draws; ``value`` and ``own`` are right."""
        self._value = aten.detach(value)
        self._known = [self._value] if aten.equal(self._value, own) else [self._value, aten.detach(own)]
        self._spare = 0

    def add(self, draw: Tensor) -> None:
        """Count one more draw."""
        if not any(aten.equal(draw, known) for known in self._known):
            self._known.append(aten.detach(draw))

    def close(self) -> None:
        """Do nothing: what the draws have are the limits."""

    def probe(self, draw: Tensor) -> None:
        """Allow for twice as many elements that no draw before has."""
        self._spare = max(self._spare, 2 * aten.item(aten.sum(self._unknown(draw))))

    def _unknown(self, output: Tensor) -> Tensor:
        known = aten.eq(output, self._known[0])
        for other in self._known[1:]:
            known = aten.logical_or(known, aten.eq(output, other))
        found: Tensor = aten.logical_not(known)
        return found

    def judge(self, output: Tensor, factor: float = 1.0, *, quick: bool = False) -> CheckResult:
        """Return whether ``output``, of the shape and type of the reference, is right."""
        if not output.numel():
            return CheckResult()
        unknown = self._unknown(output)
        wrong = aten.item(aten.sum(unknown))
        size = aten.abs(aten.sub(*(aten._to_copy(one, dtype=torch.float64) for one in (output, self._value))))
        result = CheckResult(max_abs_err=aten.item(aten.max(aten.masked_fill(size, aten.logical_not(unknown), 0.0))))
        if wrong <= self._spare:
            return result
        place = aten.item(aten.argmax(aten._to_copy(aten.reshape(unknown, [-1]), dtype=torch.int8)))
        index = element_index(int(place), output.shape)
        got, want = (aten.item(aten.select(aten.reshape(one, [-1]), 0, place)) for one in (output, self._value))
        result.err_over_tol = inf
        result.reason = f"{wrong} of {output.numel()} elements wrong, the first at {index}: got {got}, want {want}"
        return result


class _Scales:
    """Sums of products over the whole, 16 parts, each row and each column of a matrix."""

    def __init__(self, like: Tensor) -> None:
        self._rows = aten.new_zeros(like, [like.shape[0]])
        self._columns = aten.new_zeros(like, [like.shape[1]])

    def add(self, place: tuple[int, int], product: Tensor) -> None:
        """Count the rows of ``place``."""
        aten.copy_(aten.slice(self._rows, 0, *place), aten.sum_dim(product, [1]))
        aten.add_(self._columns, aten.sum_dim(product, [0]))

    def blocks(self) -> dict[str, Tensor]:
        """Return the sums by the name of what they are sums over."""
        rows, columns = self._rows.shape[0], self._columns.shape[0]
        longer = self._rows if rows >= PARTS else self._columns
        cut = longer.shape[0] // PARTS * PARTS
        blocks = {"the output": aten.sum_dim(self._rows, [0], True)}
        if cut and rows * columns >= 4 * PARTS:
            parts = aten.reshape(aten.slice(longer, 0, 0, cut), [PARTS, -1])
            blocks["part {} of 16"] = aten.sum_dim(parts, [1])
        if min(rows, columns) > 1:
            blocks |= {"row {}": self._rows, "column {}": self._columns}
        return blocks


def _matrix(tensor: Tensor) -> Tensor:
    """Return ``tensor`` as rows of its last dimension."""
    columns = tensor.shape[-1] if tensor.dim() else 1
    matrix: Tensor = aten.reshape(aten.detach(tensor), [tensor.numel() // columns if columns else 0, columns])
    return aten._to_copy(matrix, dtype=torch.float32) if matrix.element_size() == 1 else matrix  # for arithmetic


def _cut(value: Tensor) -> Tensor:
    """Return which elements a function may have cut off: zeros, and the least and greatest of each row and column."""
    cut: Tensor = aten.eq(value, 0.0)
    for dim in (dim for dim in (0, 1) if value.numel() and value.shape[dim] > 1):
        for extreme in (aten.amin(value, [dim], True), aten.amax(value, [dim], True)):
            aten.logical_or_(cut, aten.eq(value, extreme))
    return cut


def _mean_of_others(variance: Tensor, cut: Tensor, dim: int) -> Tensor:
    """Return the mean variance along ``dim`` of the elements that are not ``cut``, infinite where there are none."""
    others = aten.sum_dim(aten.logical_not(cut), [dim], True)
    mean = aten.div(aten.sum_dim(aten.masked_fill(variance, cut, 0.0), [dim], True), others)
    return aten.nan_to_num(mean, inf, inf)  # type: ignore[no-any-return]


def _chunks(matrix: Tensor) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yield rows of ``matrix``, each time with the first row and the one after the last."""
    rows, columns = matrix.shape
    step = max(1, CHUNK.get(matrix.device.type, CHUNK_ELSEWHERE) // max(1, columns))
    for start in range(0, rows if columns else 0, step):
        stop = min(rows, start + step)
        yield (start, stop), aten.slice(matrix, 0, start, stop)


def _finite(tensor: Tensor) -> Tensor:
    """Return ``tensor`` with 0 in place of infinities and NaN; itself if it has none."""
    if isfinite(aten.item(aten.sum(tensor))):
        return tensor
    found: Tensor = aten.nan_to_num(tensor, 0.0, 0.0, 0.0)
    return found
