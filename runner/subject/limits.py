"""Limits of how far an output may be from its float64 reference, which follow from draws with rounding errors.

An output is right if all of these hold, where r is the reference in float64, e the reference in its own types, s the
standard deviation of the draws around r, and u the unit roundoff of the output's type:

    each element   |y - r| <= 16 s + G u |r| + 4 o + tiny, where o is |e - r| beyond one rounding:
                   max(|e - r| - u |r|, 0). Twice as many may exceed it as do in a fresh draw
    all elements   the rms of (y - r) / z is at most 2.5, z^2 = s^2 + (g u r)^2 + o^2 + tiny^2
    scale          the part of y - r that is in proportion to r is small: in all of the tensor, in each of 16 parts, in
                   each row and each column. Here errors of rounding cancel, and wrong factors do not
    integers       each is what r, e or a draw has; as many others as a fresh draw has

All is computed by torch's own methods of tensors, since an implementation may replace functions of torch.
"""

from collections.abc import Iterator, Mapping
from math import inf, isfinite, sqrt

import torch
from torch import Tensor, cat

from ..timing.correctness import ERRORS, CheckResult, real_parts, wrong_elements
from ..timing.unpatched import unpatched
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
OF_COMPLEX = {"column 0": "the real part", "column 1": "the imaginary part"}  # columns of ``real_parts``
CHUNK = {"cpu": 2**19}  # elements in work at once: in the cache of a CPU
CHUNK_ELSEWHERE = 2**25
HUGE = 1e150
INFINITE = 1e100  # what is larger comes from HUGE


class Floats:
    """The limits of an output of floating point numbers."""

    @unpatched()
    def __init__(self, value: Tensor, own: Tensor) -> None:
        """Start without draws.

        Args:
            value: the reference in float64.
            own: the reference in its own types; what it gives is right.

        """
        self.shape, self.dtype = tuple(value.shape), own.dtype
        self._exact, self._own = _matrix(value), _matrix(own)
        self._value = _finite(self._exact)  # r, and 0 where it is not finite
        self._variance = self._value.new_zeros(self._value.shape)
        self._draws, self._spare = 0, 0
        self._bound, self._rms, self._floor = ROUNDED[own.dtype.itemsize <= 2]
        self._unit = UNIT[own.dtype]
        self._tiny = 2 * SUBNORMAL.get(own.dtype, torch.finfo(own.dtype).tiny)
        self._scales: dict[str, Tensor] = {}  # variances of sums of (y - r) r, later their limits

    @unpatched()
    def add(self, draw: Tensor) -> None:
        """Count one more draw."""
        self._draws += 1
        scales = _Scales(self._value)
        for rows, value in _chunks(self._value):
            error = self._error_of(draw, rows)
            self._variance[rows].addcmul_(error, error)
            scales.add(rows, error * value)
        for name, block in scales.blocks().items():
            self._scales[name] = block.square() + self._scales.get(name, 0.0)

    @unpatched()
    def close(self) -> None:
        """Turn what the draws add up to into limits."""
        stored = torch.float64 if self.dtype == torch.float64 else torch.float32  # limits need few digits
        self._cap, self._spread = (self._value.new_empty(self._value.shape, dtype=stored) for _ in range(2))
        cut = _cut(self._value)
        columns = _mean_of_others(self._variance, cut, 0) / self._draws
        squared, fourth, size, own = (_Scales(self._value) for _ in range(4))
        for rows, value in _chunks(self._value):
            variance = self._variance[rows] / self._draws
            if self._draws < FULL:
                self._pool(variance)
            error, square = self._error_of(self._own, rows), value.square()
            shared = _finite(_mean_of_others(variance, cut[rows], 1).clamp(max=columns))
            variance = variance.clamp(min=shared * UNSEEN).where(cut[rows], variance)
            self._limit(rows, variance, value.abs(), error.abs())
            squared.add(rows, square)
            fourth.add(rows, square.square())
            size.add(rows, value.abs())
            own.add(rows, value * error)
        del self._variance
        self._squares = squared.blocks()
        sums = [each.blocks() for each in (squared, fourth, size, own)]
        for name, block in self._scales.items():
            self._scales[name] = self._scale_limit(block / self._draws, *(blocks[name] for blocks in sums))

    def _limit(self, rows: slice, variance: Tensor, size: Tensor, own: Tensor) -> None:
        """Set what each element of some rows may differ by, and the standard deviation that is to be expected."""
        own = (own - size * self._unit).clamp(min=0.0)
        self._cap[rows] = size * (self._bound * self._unit) + own * OWN + variance.sqrt() * CAP + self._tiny
        squares = variance.addcmul(own, own).addcmul(size, size, value=(self._rms * self._unit) ** 2)
        self._spread[rows] = squares.sqrt().clamp(min=self._tiny)  # the square of a tiny number is 0

    def _pool(self, variance: Tensor) -> None:
        """Let adjacent elements share what few draws say about each of them."""
        width = variance.shape[1] // ADJACENT * ADJACENT or variance.shape[1]
        whole = variance[:, :width]
        groups = whole.reshape(variance.shape[0], -1, min(ADJACENT, width))
        shared = groups.mean(2, keepdim=True).expand(groups.shape).reshape(whole.shape)
        whole.copy_(shared.lerp(whole, self._draws / FULL))

    def _scale_limit(self, variance: Tensor, squares: Tensor, fourth: Tensor, size: Tensor, own: Tensor) -> Tensor:
        """Return the limit of |sum (y - r) r| for each block of one kind."""
        if self._draws < FULL:  # blocks of a kind share what few draws say
            shared = _finite(variance / squares.square()).mean() * squares.square()
            variance = shared.lerp(variance, self._draws / FULL)
        rounding = fourth * (self._rms * self._unit) ** 2 + squares * self._tiny**2
        limit = SCALE * (variance + rounding).sqrt() + self._floor * self._unit * squares
        return limit + OWN_SCALE * own.abs() + self._tiny * size

    @unpatched()
    def probe(self, draw: Tensor) -> None:
        """Allow for elements of a further draw that are beyond the limits: results that jump, as those of ``round``."""
        errors = ((rows, self._error_of(draw, rows).abs()) for rows, _ in _chunks(self._value))
        self._spare = max(self._spare, 2 * sum(int((error > self._cap[rows]).sum()) for rows, error in errors))

    def _error_of(self, draw: Tensor, rows: slice) -> Tensor:
        """Return d - r of some rows, 0 where one of them is not finite."""
        return _finite(_matrix(draw)[rows] - self._exact[rows])

    @unpatched()
    def judge(self, output: Tensor, factor: float = 1.0, *, quick: bool = False) -> CheckResult:
        """Judge ``output``, which has the shape and type of the reference. ``quick``: only tell whether it is right.

        ``factor`` widens all limits.
        """
        if not output.numel():
            return CheckResult()
        result, walk, wrong, where, flags = CheckResult(), 0.0, 0, 0, list[Tensor]()
        largest = output.new_zeros(0, dtype=torch.float64)
        scales, matrix = _Scales(self._value), _matrix(real_parts(output))
        for rows, value in _chunks(self._value):
            cap = self._cap[rows] * factor
            error = self._error(matrix[rows], rows, cap)
            size = error.abs()
            ratio = (size / cap).reshape(-1)
            top, at = (each.item() for each in ratio.max(0))
            flags.append(ratio > 1)
            wrong += int(flags[-1].sum()) if top > 1 else 0
            if quick and wrong > self._spare:
                return CheckResult(reason="wrong")
            where = rows.start * value.shape[1] + int(at) if top > result.err_over_tol else where
            result.err_over_tol = max(result.err_over_tol, top)
            if self._spare:
                ratio = cat([largest, ratio])
                largest, _ = ratio.topk(min(self._spare + 1, ratio.numel()))
            walked = (error / self._spread[rows]).reshape(-1)
            walk += min(1e300, walked.dot(walked).item())
            scales.add(rows, error * value)
            if not quick:
                relative = (size / value.abs()).masked_fill(value.abs() <= cap, 0.0)
                result.max_abs_err = max(result.max_abs_err, size.max().item())
                result.max_rel_err = max(result.max_rel_err, relative.max().item())
        if self._spare:
            result.err_over_tol = largest[-1].item() if largest.numel() > self._spare else 0.0
        if wrong > self._spare:
            result.reason = wrong_elements(output, self._exact, where, wrong, cat(flags))
        self._of_all(result, sqrt(walk / matrix.numel()) / (RMS * factor), "the rms of all errors is {:.3g} times")
        self._of_scale(result, scales.blocks(), factor, is_complex=output.is_complex())
        for name in ERRORS:
            if getattr(result, name) >= INFINITE:
                setattr(result, name, inf)
        return result

    def _error(self, y: Tensor, rows: slice, cap: Tensor) -> Tensor:
        """Return y - r, 0 where infinities and NaN agree, and a huge number where they do not."""
        value, own = self._exact[rows], self._own[rows]
        error = y - value
        if isfinite(error.sum().item()):
            return error
        own, y = own.double(), y.double()
        overflows = value.abs() + cap >= torch.finfo(self.dtype).max
        same = (y == value) | (y.isnan() & (value.isnan() | own.isnan()))
        same |= y.isinf() & ((y == own) | (overflows & (y.sign() == value.sign())))
        return error.masked_fill(same, 0.0).nan_to_num(HUGE, HUGE, -HUGE).clamp(-HUGE, HUGE)

    def _of_all(self, result: CheckResult, ratio: float, text: str) -> None:
        result.err_over_tol = max(result.err_over_tol, ratio)
        if ratio > 1 and not result.reason:
            result.reason = text.format(ratio) + " what rounding explains"

    def _of_scale(self, result: CheckResult, blocks: Mapping[str, Tensor], factor: float, *, is_complex: bool) -> None:
        for name, block in blocks.items():
            ratio = (block.abs() / (self._scales[name] * factor)).nan_to_num(0.0, inf, 0.0)
            top, place = ratio.max().item(), int(ratio.argmax())
            by = 1 + (block / self._squares[name])[place].item()
            where = name.format(place)
            where = OF_COMPLEX.get(where, where.replace("row", "element")) if is_complex else where
            self._of_all(result, top, f"{where} is {by:.6g} times the reference, {{:.3g}} times")


class Integers:
    """The limits of an output of integers or booleans: of indices, ties go either way."""

    @unpatched()
    def __init__(self, value: Tensor, own: Tensor) -> None:
        """Start without draws; ``value`` and ``own`` are right."""
        self._value = value.detach()
        self._known = [self._value] if self._value.equal(own) else [self._value, own.detach()]
        self._spare = 0

    @unpatched()
    def add(self, draw: Tensor) -> None:
        """Count one more draw."""
        if not any(draw.equal(known) for known in self._known):
            self._known.append(draw.detach())

    @unpatched()
    def probe(self, draw: Tensor) -> None:
        """Allow for twice as many elements that no draw before has."""
        self._spare = max(self._spare, 2 * int(self._unknown(draw).sum()))

    def _unknown(self, output: Tensor) -> Tensor:
        unknown = output != self._known[0]
        for other in self._known[1:]:
            unknown &= output != other
        return unknown

    @unpatched()
    def judge(self, output: Tensor, factor: float = 1.0, *, quick: bool = False) -> CheckResult:
        """Return whether ``output``, of the shape and type of the reference, is right."""
        if not output.numel():
            return CheckResult()
        unknown = self._unknown(output)
        wrong = int(unknown.sum())
        size = (output.double() - self._value.double()).abs()
        result = CheckResult(max_abs_err=size.masked_fill(~unknown, 0.0).max().item())
        if wrong <= self._spare:
            return result
        place = int(unknown.reshape(-1).to(torch.int8).argmax())
        result.err_over_tol = inf
        result.reason = wrong_elements(output, self._value, place, wrong, unknown, "the first")
        return result


class _Scales:
    """Sums of products over the whole, 16 parts, each row and each column of a matrix."""

    def __init__(self, like: Tensor) -> None:
        self._rows, self._columns = (like.new_zeros(count) for count in like.shape)

    def add(self, rows: slice, product: Tensor) -> None:
        """Count ``rows``."""
        self._rows[rows] = product.sum(1)
        self._columns += product.sum(0)

    def blocks(self) -> dict[str, Tensor]:
        """Return the sums by the name of what they are sums over."""
        rows, columns = self._rows.shape[0], self._columns.shape[0]
        longer = self._rows if rows >= PARTS else self._columns
        cut = longer.shape[0] // PARTS * PARTS
        blocks = {"the output": self._rows.sum(0, keepdim=True)}
        if cut and rows * columns >= 4 * PARTS:
            blocks["part {} of 16"] = longer[:cut].reshape(PARTS, -1).sum(1)
        if min(rows, columns) > 1:
            blocks |= {"row {}": self._rows, "column {}": self._columns}
        return blocks


def _matrix(tensor: Tensor) -> Tensor:
    """Return ``tensor`` as rows of its last dimension."""
    columns = tensor.shape[-1] if tensor.dim() else 1
    matrix = tensor.detach().reshape(tensor.numel() // columns if columns else 0, columns)
    return matrix.float() if matrix.element_size() == 1 else matrix  # for arithmetic


def _cut(value: Tensor) -> Tensor:
    """Mark the elements that a function may have cut off: zeros, and the least and greatest of each row and column."""
    cut = value == 0.0
    for dim in (dim for dim in (0, 1) if value.numel() and value.shape[dim] > 1):
        for extreme in (value.amin(dim, keepdim=True), value.amax(dim, keepdim=True)):
            cut |= value == extreme
    return cut


def _mean_of_others(variance: Tensor, cut: Tensor, dim: int) -> Tensor:
    """Return the mean variance along ``dim`` of the elements that are not ``cut``, infinite where there are none."""
    mean = variance.masked_fill(cut, 0.0).sum(dim, keepdim=True) / (~cut).sum(dim, keepdim=True)
    return mean.nan_to_num(inf, inf)


def _chunks(matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield some rows of ``matrix`` at a time, each with where they are."""
    rows, columns = matrix.shape
    step = max(1, CHUNK.get(matrix.device.type, CHUNK_ELSEWHERE) // max(1, columns))
    for start in range(0, rows if columns else 0, step):
        place = slice(start, min(rows, start + step))
        yield place, matrix[place]


def _finite(tensor: Tensor) -> Tensor:
    """Return ``tensor`` with 0 in place of infinities and NaN; itself if it has none."""
    return tensor if isfinite(tensor.sum().item()) else tensor.nan_to_num(0.0, 0.0, 0.0)
