"""Compare outputs with a float64 reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runner.experiment.case import Scalar
from runner.timing import Call, Expected

aten = torch.ops.aten  # the operators themselves: a case may replace functions of torch, or methods of Tensor
PLAIN = (Tensor, torch.nn.Parameter)  # another subclass may compute its values only when they are read
CHUNK = 2**24  # elements compared at once: temporaries stay near 1 GiB however large the output


@dataclass
class CheckResult:
    """The largest error of each kind over all outputs."""

    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    err_over_tol: float = 0.0
    tolerance: list[str] = field(default_factory=list)
    compared: bool = True  # False: an output is missing or has another shape, so there is no largest error
    reason: str = ""  # the first output that is wrong, and where its error is largest

    @property
    def correct(self) -> bool:
        """True if no output is wrong."""
        return not self.reason

    def columns(self) -> dict[str, Scalar]:
        """Return the columns of a row. JSON has no infinity: an infinite error is left out."""
        names = ("max_abs_err", "max_rel_err", "err_over_tol") if self.compared else ()
        errors = {name: error for name in names if math.isfinite(error := getattr(self, name))}
        return {"correct": self.correct, **errors, "tolerance": "; ".join(dict.fromkeys(self.tolerance))}


def repeats(call: Call, outputs: Sequence[object]) -> bool:
    """Return whether ``call`` gives the bits of ``outputs`` again, in the first ``CHUNK`` elements of each."""
    before = [aten.clone(_bits(output)) for output in outputs if isinstance(output, Tensor)]  # it may overwrite them
    call.restore()
    after = [_bits(output) for output in call.run() if isinstance(output, Tensor)]
    return len(before) == len(after) and all(map(aten.equal, before, after))


def _bits(output: Tensor) -> Tensor:
    """Return the first elements as bytes. As numbers, NaN differs from itself, and 0 equals -0."""
    found: Tensor = aten.view.dtype(aten.contiguous(_part(output, 0)), torch.uint8)
    return found


def _part(tensor: Tensor, start: int) -> Tensor:
    """Return up to ``CHUNK`` elements from ``start`` on, in one dimension."""
    part: Tensor = aten.slice(aten.reshape(aten.detach(tensor), [-1]), 0, start, start + CHUNK)
    return part


def compare(outputs: Sequence[object], expected: Sequence[Expected], dtype: torch.dtype) -> CheckResult:
    """Compare every output with its reference. Equal infinities agree, and so do two NaNs."""
    result = CheckResult(compared=len(outputs) == len(expected))
    if not result.compared:
        result.reason = f"{len(outputs)} outputs where {len(expected)} are expected"
    for output, wanted in zip(outputs, expected, strict=False):
        result.tolerance.append(wanted.tolerance)
        if reason := _misfit(output, wanted.value, dtype):
            result.compared = False
        else:
            reason = _compare(output, wanted, result)  # type: ignore[arg-type]
        result.reason = result.reason or (reason and f"{wanted.name}: {reason}")
    return result


def _misfit(output: object, value: Tensor, dtype: torch.dtype) -> str:
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


def _compare(output: Tensor, wanted: Expected, into: CheckResult) -> str:
    """Add the errors of one output to ``into``. Return where it is wrong; "" if it is correct."""
    wrong, worst, place, count = 0, -1.0, 0, math.prod(output.shape)
    for start in range(0, count, CHUNK):
        y, r = aten._to_copy(_part(output, start), dtype=torch.float64), _part(wanted.value, start)
        atol = _part(wanted.atol, start) if isinstance(wanted.atol, Tensor) else aten.full_like(r, wanted.atol)
        size, same = aten.abs(r), aten.logical_or(aten.eq(y, r), aten.logical_and(aten.isnan(y), aten.isnan(r)))
        error = aten.masked_fill(_nan_as_inf(aten.abs(aten.sub(y, r))), same, 0.0)
        allowed = aten.add(atol, aten.mul(aten.where(aten.isfinite(r), size, 0.0), wanted.rtol))
        ratio = _nan_as_inf(aten.masked_fill(aten.div(error, allowed), same, 0.0))
        top, at = aten.max.dim(ratio, 0)
        if aten.item(top) > worst:
            worst, place = aten.item(top), start + aten.item(at)
        wrong += aten.item(aten.sum(aten.gt(ratio, 1)))
        relative = _nan_as_inf(aten.where(aten.gt(size, atol), aten.div(error, size), 0.0))
        into.max_abs_err = max(into.max_abs_err, aten.item(aten.max(error)))
        into.max_rel_err = max(into.max_rel_err, aten.item(aten.max(relative)))
    into.err_over_tol = max(into.err_over_tol, worst)
    if not wrong:
        return ""
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), output.shape))
    got, want = (aten.item(aten.select(_part(tensor, place), 0, 0)) for tensor in (output, wanted.value))
    return f"{wrong} of {count} elements wrong, worst at {index}: got {got:.6g}, want {want:.6g}"


def _nan_as_inf(tensor: Tensor) -> Tensor:
    found: Tensor = aten.nan_to_num(tensor, math.inf, math.inf)
    return found
