"""The check of a function that a caller times: against a reference in float64, and for a result that it has kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runner.experiment.case import Scalar
from runner.timing import Expected
from runner.timing.arguments import Backward, Inputs, leaves, mapped, same_bits
from runner.timing.call import tensors
from runner.timing.correctness import compare

if TYPE_CHECKING:
    from runner.timing.in_process import Function, Options


RELATIVE, OF_RMS = {2: 8, 4: 32}, {2: 8, 4: 512}  # unit roundoffs allowed, by the bytes of a number: narrow types are
# computed in float32 and rounded once or a few times; a sum of thousands in float32 has hundreds of roundoffs


class Reference:
    """What a function should return, in float64."""

    def __init__(self, options: Options, args: Sequence[Any]) -> None:
        assert options.reference
        self._atol, self._rtol = options.atol, options.rtol
        self._args = mapped(_as_float64, tuple(args))
        run = Backward(options.reference, self._args) if options.grad else partial(options.reference, *self._args)
        self._values = [_real(one).to(torch.float64) for one in tensors(run())]

    def check(self, run: Callable[[], object], inputs: Inputs) -> tuple[dict[str, Scalar], Callable[[Any], str] | None]:
        """Return columns, with a ``reason`` if the outputs are wrong; and what judges later outputs of the same call.

        A function that returns nothing is judged by the arguments that it changes.
        """
        try:
            outputs = [*tensors(run())]
            in_place = not outputs
            outputs = outputs or [now for now, _ in inputs.changed]
            values = self._values
            if not values:  # the reference changes its arguments too
                order = [one for one in leaves(self._args) if isinstance(one, Tensor)]
                places = [next(at for at, one in enumerate(inputs.tensors) if one is now) for now, _ in inputs.changed]
                values = [_real(order[place]).to(torch.float64) for place in places]
            if not outputs and not values:
                raise ValueError("check: the function returns no tensor and changes no argument")
            columns, reason = self._compare(outputs, values)
        finally:
            inputs.restore()

        def judge(outputs: Sequence[Tensor]) -> str:
            return self._compare(outputs, values)[1]

        return {**columns, "reason": reason}, None if in_place else judge

    def _compare(self, outputs: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[dict[str, Scalar], str]:
        """Return the columns of the least exact output, and what is wrong with the first wrong one."""
        outputs = list(map(_real, outputs))
        if len(outputs) != len(values):
            return {"correct": False}, f"{len(outputs)} outputs where the reference has {len(values)}"
        columns: dict[str, Any] = {"correct": True}
        reasons, said = [], []
        for place, (output, value) in enumerate(zip(outputs, values, strict=True)):
            name = f"output {place}" if len(outputs) > 1 else "the output"
            expected = self._expected(name, output, value)
            result = compare([output], [expected], output.dtype)
            found = result.columns()
            said.append(expected.tolerance)
            reasons.append(result.reason)
            columns |= {
                column: max(number, columns.get(column, 0.0))
                for column, number in found.items()
                if isinstance(number, float)
            }
        columns |= {"correct": not any(reasons), "tolerance": "; ".join(dict.fromkeys(said))}
        return columns, next(filter(None, reasons), "")

    def _expected(self, name: str, output: Tensor, value: Tensor) -> Expected:
        """Return ``value`` with the caller's tolerance, or one that follows from the output's type."""
        kind = str(output.dtype).removeprefix("torch.")
        atol, rtol, why = 0.0, 0.0, f"{kind}: exactly"
        if output.is_floating_point():
            unit, narrow = torch.finfo(output.dtype).eps / 2, 2 if output.dtype.itemsize <= 2 else 4
            finite = value[value.isfinite()]
            rms = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
            rtol, atol = RELATIVE[narrow] * unit, OF_RMS[narrow] * unit * rms
            why = f"from {kind}"
        if self._atol is not None or self._rtol is not None:
            atol, rtol, why = self._atol or 0.0, self._rtol or 0.0, "as asked"
        return Expected(name, value, atol, rtol, f"{atol:.2g} + {rtol:.2g} |reference| ({why})")


def _real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _as_float64(tensor: Tensor) -> Tensor:
    """Return a copy, in float64 or complex128 if it does not hold integers."""
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128, copy=True).requires_grad_(tensor.requires_grad)
    if tensor.is_floating_point():
        return tensor.detach().to(torch.float64, copy=True).requires_grad_(tensor.requires_grad)
    return tensor.clone()


def returns_cached_result(function: Function, args: Sequence[Any]) -> bool:
    """Return whether ``function`` gives the same bits for other numbers: half of each, in reverse order.

    They have the signs and ranges of the given ones, so that a function that is picky about them can be called.
    """

    def other(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            return tensor.clone()
        return (tensor.detach() / 2).reshape(-1).flip(0).reshape(tensor.shape).requires_grad_(tensor.requires_grad)

    given = [one for one in leaves(args) if isinstance(one, Tensor) and one.is_floating_point()]
    try:
        others = mapped(other, tuple(args))
        before = [one.clone() for one in tensors(function(*args))]
        after = tensors(function(*others))
        alike = len(before) == len(after) and all(map(same_bits, before, after))
        varies = any(one.numel() and bool((one != one.reshape(-1)[0]).any()) for one in before)
    except (RuntimeError, ValueError):  # it takes no other numbers
        return False
    return bool(given) and alike and varies
