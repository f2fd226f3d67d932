"""Compare outputs with a float64 reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, prod, sqrt
from typing import Any, Self

import torch
from torch import Tensor

from ..records.case import Scalar
from . import nested
from .call import Call, Expected, Outputs
from .nested import returned
from .unpatched import unpatched
from .unwritten import FILLED

PLAIN = (Tensor, torch.nn.Parameter)  # other subclasses may have no memory, or compute values when they are read
ROUNDED = 1e-6  # rounding of a number of elements
PART_NAMES = ("real", "imaginary")  # of a complex number
CHUNK = 2**24  # elements compared at once: temporaries stay near 1 GiB however large the output


ERRORS = ("max_abs_err", "max_rel_err", "err_over_tol")  # fields of ``CheckResult`` that are columns


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

    def include(self, other: Self) -> None:
        """Take over the larger errors of ``other``, and whether it was compared."""
        for name in ERRORS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.compared &= other.compared

    @property
    def correct(self) -> bool:
        """Whether all outputs are correct."""
        return not self.reason

    def columns(self) -> dict[str, Scalar]:
        """Return the columns of a row, without infinite errors, which JSON cannot hold."""
        names = ERRORS if self.compared else ()
        errors = {name: error for name in names if isfinite(error := getattr(self, name))}
        notes = {"check_note": note} if (note := self.unknown or self.note) else {}
        tolerance = "; ".join(dict.fromkeys(self.tolerance))
        correct = None if self.correct and self.unknown else self.correct
        return {"correct": correct, **errors, "tolerance": tolerance, **notes}


class WrongOutput(Exception):
    """A result is wrong in a way that keeps its call from ending, as one of another shape than its gradient."""


@dataclass(frozen=True)
class ExpectedOutputs(Outputs):
    """Outputs with a value and a tolerance for each element."""

    expected: tuple[Expected, ...]
    dtype: torch.dtype  # type of each output

    def check(self, outputs: Any, changed: Sequence[Tensor] | None = None) -> CheckResult:
        """Compare every output with its reference."""
        return check_outputs(returned(outputs, changed), self.expected, self.dtype)


def repeats(call: Call, outputs: object, changed: Sequence[Tensor] = ()) -> bool:
    """Return whether ``call`` gives the bits of ``outputs`` again, in the first ``CHUNK`` elements of each.

    ``changed``: arguments, in which it must leave the same bits too.
    """
    before = _first_bits((outputs, changed))
    call.restore()
    after = _first_bits((call.run(), changed))
    return len(before) == len(after) and all(map(same_bits, before, after))


@unpatched()
def _first_bits(value: object) -> list[Tensor]:
    return [_bits(tensor, 0).clone() for tensor in nested.tensors(value)]  # a further call may overwrite them


@unpatched()
def same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors that are not sparse have the same shape, type and bits; NaN equals NaN, not 0 -0."""
    if first.shape != second.shape or first.dtype != second.dtype or first.layout is not torch.strided:
        return False
    starts = range(0, first.numel(), CHUNK)
    return all(_bits(first, start).equal(_bits(second, start)) for start in starts)


def _bits(tensor: Tensor, start: int) -> Tensor:
    """Return up to ``CHUNK`` elements from ``start`` on as bytes."""
    flat = part(tensor, start).resolve_conj().resolve_neg().contiguous()
    return flat.as_strided(flat.shape, [1]).view(torch.uint8)  # one element, or none, may have kept another stride


def real_parts(tensor: Tensor) -> Tensor:
    """Return real and imaginary parts of complex numbers along a further dimension; other tensors as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def part(tensor: Tensor, start: int) -> Tensor:
    """Return up to ``CHUNK`` elements from ``start`` on, in one dimension."""
    return tensor.detach().reshape(-1)[start : start + CHUNK]


def check_outputs(outputs: Sequence[object], expected: Sequence[Expected], dtype: torch.dtype) -> CheckResult:
    """Compare every output with its reference. Equal infinities agree, and so do two NaNs."""
    result = CheckResult(compared=len(outputs) == len(expected))
    if not result.compared:
        result.reason = f"{len(outputs)} outputs where the reference has {len(expected)}"
    for output, reference in zip(outputs, expected, strict=False):
        result.tolerance.append(reference.tolerance)
        reason = misfit(output, reference.value, getattr(torch, reference.dtype) if reference.dtype else dtype)
        found = CheckResult(compared=False, reason=reason) if reason else deviation(output, reference)  # type: ignore[arg-type]
        result.include(found)
        result.reason = result.reason or (found.reason and f"{reference.name}: {found.reason}")
    return result


@unpatched()
def misfit(output: object, value: Tensor, dtype: torch.dtype) -> str:
    """Return the reason why ``output`` is not a plain tensor of ``dtype`` with the shape and device of ``value``."""
    if not isinstance(output, Tensor) or type(output) not in PLAIN:
        return f"{output if output is None else 'a ' + type(output).__name__} where a tensor is expected"
    if output.shape != value.shape:
        return f"shape {tuple(output.shape)} where the reference has {tuple(value.shape)}"
    if output.dtype != dtype:
        return f"dtype {output.dtype} where {dtype} is expected"
    if output.device != value.device:
        return f"on device {output.device} where {value.device} is expected"
    if output.layout != value.layout:
        return f"layout {output.layout} where {value.layout} is expected"
    return ""


@unpatched()
def deviation(output: Tensor, reference: Expected) -> CheckResult:
    """Compare one output with its reference, of the same shape. The reason names the place of the largest error.

    Complex numbers are compared by their ``real_parts``, which the reference has.
    """
    numbers = real_parts(output)
    result, wrong, worst, place, count = CheckResult(), 0, -1.0, 0, prod(numbers.shape)
    along = squares = walk = 0.0
    for start in range(0, count, CHUNK):
        y, r = part(numbers, start).double(), part(reference.value, start)
        atol = part(reference.atol, start) if isinstance(reference.atol, Tensor) else reference.atol
        size, same = r.abs(), (y == r) | (y.isnan() & r.isnan())
        error = (y - r).abs().nan_to_num(inf, inf).masked_fill(same, 0.0)  # a NaN is as wrong as can be
        allowed = atol + size.where(r.isfinite(), 0.0) * reference.rtol
        ratio = (error / allowed).masked_fill(same, 0.0).nan_to_num(inf, inf)
        top, at = (each.item() for each in ratio.max(0))
        if top > worst:
            worst, place = top, start + int(at)
        wrong += int((ratio > 1).sum())
        walk += (ratio * ratio).sum().item() if reference.rms < inf else 0.0
        if reference.common < inf:
            of = r if reference.along is None else part(reference.along, start).double()
            of = of.masked_fill(ratio > 1, 0.0)  # few beyond their limits do not make a factor of all
            along += ((y - r.to(numbers.dtype).double()) * of).sum().item()
            squares += (of * of).sum().item()
        relative = (error / size).where(size > atol, 0.0).nan_to_num(inf, inf)
        result.max_abs_err = max(result.max_abs_err, error.max().item())
        result.max_rel_err = max(result.max_rel_err, relative.max().item())
    largest, over = result.max_abs_err, result.max_abs_err > reference.cap
    allowed_wrong = (1 - reference.share) * count + ROUNDED if isfinite(largest) and not over else 0
    factor = along / squares if squares and isfinite(along) else 0.0
    rms = sqrt(walk / max(1, count)) / reference.rms
    passes = wrong <= allowed_wrong
    result.err_over_tol = max(0.0, min(worst, 1.0) if passes else worst, abs(factor) / reference.common, rms)
    if over and wrong <= (1 - reference.share) * count:
        result.reason = f"the largest error is {largest:.6g}, which is above {reference.cap:.6g}"
    elif over or not passes:
        flags = ratio > 1 if count <= CHUNK else None
        result.reason = wrong_elements(output, reference.value, place, wrong, flags)
    elif abs(factor) > reference.common:
        shares = f"{100 * factor:+.2g} % off in common, and {100 * reference.common:.2g} % are allowed"
        result.reason = f"all elements are {shares}"
    elif rms > 1:
        result.reason = f"the rms of all errors is {rms:.3g} times what rounding explains"
    return result


def wrong_elements(
    output: Tensor, value: Tensor, place: int, wrong: int, flags: Tensor | None, which: str = "worst"
) -> str:
    """Say how many elements are ``wrong``, in which block, if ``flags`` tell, and what the one at ``place`` is.

    For complex numbers, ``value``, ``flags`` and ``place`` are those of their ``real_parts``.
    """
    parts = real_parts(output)
    block = "" if flags is None or wrong == 1 else _block(flags.reshape(parts.shape), is_complex=output.is_complex())
    element = part(parts, place)[:1]
    numbers = (tensor[0].item() for tensor in (element, part(value, place)))
    got, want = (f"{number:.6g}" if isinstance(number, float) else number for number in numbers)
    if element.element_size() > 1 and {*_bits(element, 0).tolist()} in FILLED:  # of one byte it may be chance
        got = f"{got} (unwritten)"
    index, elements = _index(place, parts.shape), "elements"
    where = f"at {index}"
    if output.is_complex():
        elements, where = "real and imaginary parts", f"the {PART_NAMES[index[-1]]} part at {index[:-1]}"
    return f"{wrong} of {parts.numel()} {elements} wrong{block}, {which} {where}: got {got}, want {want}"


def _block(flags: Tensor, *, is_complex: bool) -> str:
    """Return the smallest block with all ``flags``, as a part of a sentence; "" if it is the whole."""
    dimensions, ends = range(flags.dim()), []
    for dimension, size in enumerate(flags.shape):
        others = [other for other in dimensions if other != dimension]
        places = (flags.any(others) if others else flags).nonzero()
        first, last = int(places[0]), int(places[-1])
        ends.append(":" if last - first == size - 1 else f"{first}:{last + 1}" if first < last else str(first))
    words = []
    if is_complex and (part := ends.pop()) != ":":
        words.append(PART_NAMES[int(part)])
    if {*ends} - {":"}:
        words.append(f"in [{', '.join(ends)}]")
    return f", all {', '.join(words)}" if words else ""


def _index(place: int, shape: torch.Size) -> tuple[int, ...]:
    """Return the index of the element at ``place``. torch.unravel_index would import sympy, which takes 0.2 s."""
    strides = torch.empty(shape, device="meta").stride()
    return tuple(place // stride % size for stride, size in zip(strides, shape, strict=True))
