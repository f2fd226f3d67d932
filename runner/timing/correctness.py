"""Compare outputs with a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, prod, sqrt
from typing import Any, Protocol

import torch
from torch import Tensor

from ..records.case import Scalar
from . import nested
from .bound import aten
from .call import Call, Expected
from .nested import returned

PLAIN = (Tensor, torch.nn.Parameter)  # other subclasses may have no memory, or compute values when they are read
ROUNDED = 1e-6  # of a number of elements
CHUNK = 2**24  # elements compared at once: temporaries stay near 1 GiB however large the output


@dataclass
class CheckResult:
    """The largest error of each kind over all outputs."""

    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    err_over_tol: float = 0.0
    tolerance: list[str] = field(default_factory=list)
    compared: bool = True  # False: an output is missing or does not have the expected shape and type
    reason: str = ""  # the first wrong output, and the place of its largest error
    unknown: str = ""  # why the check cannot tell right from wrong
    note: str = ""  # wrong outputs that the check would pass

    @property
    def correct(self) -> bool:
        """Whether all outputs are correct."""
        return not self.reason

    def columns(self) -> dict[str, Scalar]:
        """Return the columns of a row, without infinite errors, which JSON cannot hold."""
        names = ("max_abs_err", "max_rel_err", "err_over_tol") if self.compared else ()
        errors = {name: error for name in names if isfinite(error := getattr(self, name))}
        notes = {"check_note": note} if (note := self.unknown or self.note) else {}
        tolerance = "; ".join(dict.fromkeys(self.tolerance))
        return {"correct": None if self.unknown else self.correct, **errors, "tolerance": tolerance, **notes}


class Outputs(Protocol):
    """What the outputs of a call should be."""

    def check(self, outputs: Any, changed: Sequence[Tensor] | None = None) -> CheckResult:
        """Compare what a call returned, and the arguments that it ``changed``, as they are now. None: unknown."""

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[str] = ()) -> CheckResult:
        """Compare the tensors among what a call returned, in their order. ``paths``: where they are in it."""


@dataclass(frozen=True)
class ExpectedOutputs:
    """Outputs with a value and a tolerance for each element."""

    expected: tuple[Expected, ...]
    dtype: torch.dtype  # of each output

    def check(self, outputs: Any, changed: Sequence[Tensor] | None = None) -> CheckResult:
        """Compare every output with its reference."""
        return check_outputs(returned(outputs, changed), self.expected, self.dtype)

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[str] = ()) -> CheckResult:
        """Compare every output with its reference, whatever its path."""
        return self.check(outputs)


def repeats(call: Call, outputs: object, changed: Sequence[Tensor] = ()) -> bool:
    """Return whether ``call`` gives the bits of ``outputs`` again, in the first ``CHUNK`` elements of each.

    ``changed``: arguments, in which it must leave the same bits too.
    """
    before = [aten.clone(_bits(output, 0)) for output in nested.tensors((outputs, changed))]  # it may overwrite them
    call.restore()
    after = [_bits(output, 0) for output in nested.tensors((call.run(), changed))]
    return len(before) == len(after) and all(map(aten.equal, before, after))


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors that are not sparse have the same shape, type and bits; NaN equals NaN, not 0 -0."""
    if first.shape != second.shape or first.dtype != second.dtype or first.layout is not torch.strided:
        return False
    starts = range(0, first.numel(), CHUNK)
    return all(aten.equal(_bits(first, start), _bits(second, start)) for start in starts)


def _bits(tensor: Tensor, start: int) -> Tensor:
    """Return up to ``CHUNK`` elements from ``start`` on as bytes."""
    plain = aten.resolve_neg(aten.resolve_conj(_part(tensor, start)))
    as_bytes: Tensor = aten.view_dtype(aten.contiguous(plain), torch.uint8)
    return as_bytes


def _part(tensor: Tensor, start: int) -> Tensor:
    """Return up to ``CHUNK`` elements from ``start`` on, in one dimension."""
    part: Tensor = aten.slice(aten.reshape(aten.detach(tensor), [-1]), 0, start, start + CHUNK)
    return part


def check_outputs(outputs: Sequence[object], expected: Sequence[Expected], dtype: torch.dtype) -> CheckResult:
    """Compare every output with its reference. Equal infinities agree, and so do two NaNs."""
    result = CheckResult(compared=len(outputs) == len(expected))
    if not result.compared:
        result.reason = f"{len(outputs)} outputs where {len(expected)} are expected"
    for output, reference in zip(outputs, expected, strict=False):
        result.tolerance.append(reference.tolerance)
        if reason := misfit(output, reference.value, getattr(torch, reference.dtype) if reference.dtype else dtype):
            result.compared = False
        else:
            reason = _compare(output, reference, result)  # type: ignore[arg-type]
        result.reason = result.reason or (reason and f"{reference.name}: {reason}")
    return result


def misfit(output: object, value: Tensor, dtype: torch.dtype) -> str:
    """Return what keeps ``output`` from being a plain tensor of ``dtype`` and of the shape and device of ``value``."""
    if not isinstance(output, Tensor) or type(output) not in PLAIN:
        return f"a {type(output).__name__} where a tensor is expected"
    if output.shape != value.shape:
        return f"shape {tuple(output.shape)} where {tuple(value.shape)} is expected"
    if output.dtype != dtype:
        return f"dtype {output.dtype} where {dtype} is expected"
    if output.device != value.device:
        return f"on device {output.device} where {value.device} is expected"
    if output.layout != value.layout:
        return f"layout {output.layout} where {value.layout} is expected"
    return ""


def _compare(output: Tensor, reference: Expected, into: CheckResult) -> str:
    """Add the errors of one output to ``into``. Return the place of the largest error; "" if it is correct."""
    wrong, worst, largest, place, count = 0, -1.0, 0.0, 0, prod(output.shape)
    along = squares = walk = 0.0
    for start in range(0, count, CHUNK):
        y, r = aten._to_copy(_part(output, start), dtype=torch.float64), _part(reference.value, start)
        atol = _part(reference.atol, start) if isinstance(reference.atol, Tensor) else aten.full_like(r, reference.atol)
        size, same = aten.abs(r), aten.logical_or(aten.eq(y, r), aten.logical_and(aten.isnan(y), aten.isnan(r)))
        error = aten.masked_fill(_nan_as_inf(aten.abs(aten.sub(y, r))), same, 0.0)
        allowed = aten.add(atol, aten.mul(aten.where(aten.isfinite(r), size, 0.0), reference.rtol))
        ratio = _nan_as_inf(aten.masked_fill(aten.div(error, allowed), same, 0.0))
        top, at = aten.max_dim(ratio, 0)
        if aten.item(top) > worst:
            worst, place = aten.item(top), start + aten.item(at)
        wrong += aten.item(aten.sum(aten.gt(ratio, 1)))
        walk += aten.item(aten.sum(aten.mul(ratio, ratio))) if reference.rms < inf else 0.0
        if reference.common < inf:
            of = r if reference.along is None else aten._to_copy(_part(reference.along, start), dtype=torch.float64)
            rounded = aten._to_copy(aten._to_copy(r, dtype=output.dtype), dtype=torch.float64)
            along += aten.item(aten.sum(aten.mul(aten.sub(y, rounded), of)))
            squares += aten.item(aten.sum(aten.mul(of, of)))
        relative = _nan_as_inf(aten.where(aten.gt(size, atol), aten.div(error, size), 0.0))
        largest = max(largest, aten.item(aten.max(error)))
        into.max_abs_err = max(into.max_abs_err, largest)
        into.max_rel_err = max(into.max_rel_err, aten.item(aten.max(relative)))
    over = largest > reference.cap
    allowed_wrong = (1 - reference.share) * count + ROUNDED if isfinite(largest) and not over else 0
    into.err_over_tol = max(into.err_over_tol, min(worst, 1.0) if wrong <= allowed_wrong else worst)
    factor = along / squares if squares and isfinite(along) else 0.0
    rms = sqrt(walk / max(1, count)) / reference.rms
    into.err_over_tol = max(into.err_over_tol, abs(factor) / reference.common, rms)
    if wrong <= allowed_wrong and not over:
        if abs(factor) > reference.common:
            allowed = f"{100 * reference.common:.2g} % are allowed"
            return f"all elements are {100 * factor:+.2g} % off in common, and {allowed}"
        return f"the rms of all errors is {rms:.3g} times what rounding explains" if rms > 1 else ""
    if over and wrong <= (1 - reference.share) * count:
        return f"the largest error is {largest:.6g}, which is above {reference.cap:.6g}"
    index = element_index(place, output.shape)
    got, want = (aten.item(aten.select(_part(tensor, place), 0, 0)) for tensor in (output, reference.value))
    return f"{wrong} of {count} elements wrong, worst at {index}: got {got:.6g}, want {want:.6g}"


def element_index(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index of the element at ``place``. torch.unravel_index would import sympy, which takes 0.2 s."""
    index: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.insert(0, at)
    return tuple(index)


def _nan_as_inf(tensor: Tensor) -> Tensor:
    replaced: Tensor = aten.nan_to_num(tensor, inf, inf)
    return replaced
