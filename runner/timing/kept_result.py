"""Find calls that return a result that they have kept, instead of computing it."""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from . import ranks
from .arguments import Inputs, has_numbers
from .call import Call
from .correctness import same_bits
from .nested import returned_tensors

RARE = 1024  # one of so many elements changes when few of them do
ALONE = 4  # so many inputs are also changed alone, since a call may take long on a CPU
UNCHANGED = "the outputs did not change with the inputs"
AGAIN = "the outputs of an earlier call were returned again, although they had been overwritten"


def kept_result(call: Call) -> str:
    """Return how ``call`` was seen to return a kept result; "" if it computes the result each time.

    Three calls test this: one after the previous outputs were overwritten, one with all floating-point inputs halved
    and reversed, and one with a few random elements halved. Further calls change one input each, for what is kept for
    the values of others. A kept result is reported only if it is wrong for the changed inputs: a mask does not depend
    on them. Integers do not change, since they may be indices. Inputs and outputs are restored.
    """
    if not call.inputs or not call.judge_anew:
        return ""
    inputs = [x for x in call.inputs if has_numbers(x)]
    floats = list(map(_numbers, inputs))
    with forgiven():
        before, survived = _overwritten(call)
        if not floats:  # other integers may be no valid indices
            return ranks.current.first(AGAIN if any(survived) else "")
        for change in (_halve_and_reverse, _halve_few):
            with _changed(call, floats, change) as after:
                if len(before) == len(after):
                    mixed = [was if kept else now for was, now, kept in zip(before, after, survived, strict=True)]
                    wrong = _if_wrong(UNCHANGED, all(map(same_bits, before, after)), call, after)
                    if wrong := wrong or _if_wrong(AGAIN, any(survived), call, mixed):
                        return wrong
        return _kept_of_one(call, inputs, before) if len(floats) > 1 else ""
    return ""


def forgiven() -> contextlib.AbstractContextManager[object]:
    """Suppress an error, of too little memory or of values that a call does not take, unless other ranks wait."""
    return contextlib.nullcontext() if ranks.current.count > 1 else contextlib.suppress(Exception)


@contextlib.contextmanager
def other_values(call: Call, inputs: Inputs) -> Iterator[None]:
    """Change ``inputs`` for a first call, so that what it keeps of them is wrong; then undo all changes."""
    try:
        for x in inputs.numbers:
            _to_first(inputs, _numbers(x))
        call.restore()  # if it reads copies of its inputs, those change too
        yield
    finally:
        inputs.undo()
        call.restore()


def keeps_first_values(call: Call, inputs: Inputs, outputs: list[Tensor]) -> bool:
    """Return whether wrong ``outputs`` come from values that ``call`` kept, those of ``other_values``.

    Then the call is right if its inputs have those values, and it either returns the same outputs for them, or is wrong
    for a third set of values too, half of the first. That is right for a call whose outputs overflow, are wrong by
    little, or are wrong in cases that do not occur in the first set either.
    """
    assert call.judge_anew
    numbers, kept = [*map(_numbers, inputs.numbers)], [output.clone() for output in outputs]
    floats = [x for x in numbers if has_numbers(x)]
    right = same = False
    with forgiven(), _changed(call, numbers, partial(_to_first, inputs)) as after:
        right = not ranks.current.any(call.judge_anew(after))
        same = ranks.current.any(all(map(same_bits, kept, after)))
    return right and (same or (bool(floats) and not _is_right(call, floats, _quarter_and_reverse)))


def _is_right(call: Call, inputs: list[Tensor], change: Callable[[Tensor], None]) -> bool:
    """Return whether the outputs of ``call`` are right for changed ``inputs``."""
    assert call.judge_anew
    with forgiven(), _changed(call, inputs, change) as outputs:
        return not ranks.current.any(call.judge_anew(outputs))
    return False


def _kept_of_one(call: Call, inputs: list[Tensor], before: list[Tensor]) -> str:
    """Return of which input, parameters last, ``call`` keeps what it computed; "" if of none.

    Then the outputs are wrong if it alone gets other values, but right if all inputs do. That is not so for an input
    that the call never reads, such as a mask that it knows.
    """
    for x in sorted(inputs, key=lambda x: isinstance(x, torch.nn.Parameter))[:ALONE]:
        with _changed(call, [_numbers(x)], _halve_and_reverse) as after:
            wrong = _if_wrong(UNCHANGED, all(map(same_bits, before, after)), call, after)
        if wrong and _is_right(call, [*map(_numbers, inputs)], _halve_and_reverse):
            return f"{wrong.removesuffix('s')} of shape {tuple(x.shape)}"
    return ""


@contextlib.contextmanager
def _changed(call: Call, inputs: list[Tensor], change: Callable[[Tensor], None]) -> Iterator[list[Tensor]]:
    """Yield what ``call`` returns for changed ``inputs``, which hold what the call was given; then restore them."""
    originals = [tensor.clone() for tensor in inputs]
    try:
        for tensor in inputs:
            change(tensor)
        given = [tensor.clone() for tensor in inputs]
        if call.reset:  # of inputs that the call has copied, or of the inputs themselves
            call.restore()
            torch._foreach_copy_(inputs, given)
        after = returned_tensors(call.run())
        if call.reset:  # judge by what the call was given, not by what it has made of that
            after = [output.clone() for output in after]
            call.restore()
            torch._foreach_copy_(inputs, given)
        yield after
    finally:
        torch._foreach_copy_(inputs, originals)
        call.restore()


def _numbers(x: Tensor) -> Tensor:
    """Return a real tensor over the memory of ``x``; of an expanded one, each number once, as torch can write it."""
    numbers = torch.view_as_real(x.data) if x.is_complex() else x.data
    for dim in range(numbers.dim()):
        numbers = numbers if numbers.stride(dim) else numbers.narrow(dim, 0, 1)
    return numbers


def _if_wrong(text: str, suspect: bool, call: Call, outputs: list[Tensor]) -> str:
    """Return ``text`` if suspect ``outputs`` are wrong on any rank. All judge them, as a reference may communicate."""
    assert call.judge_anew
    if not ranks.current.any(suspect):
        return ""
    wrong = call.judge_anew(outputs)
    return ranks.current.first(text if wrong and suspect else "")


def _overwritten(call: Call) -> tuple[list[Tensor], list[bool]]:
    """Return the outputs of a call, and which of them the next call returns as they were overwritten in between."""
    call.restore()
    inputs = {x.untyped_storage().data_ptr() for x in call.inputs}
    outputs = returned_tensors(call.run())
    before = [output.clone() for output in outputs]
    ours = [pair for pair in zip(outputs, before, strict=True) if pair[0].untyped_storage().data_ptr() not in inputs]
    try:
        for output, _ in ours:
            with contextlib.suppress(RuntimeError):  # torch does not write to expanded or inference tensors
                output.fill_(math.nan) if output.is_floating_point() or output.is_complex() else output.bitwise_not_()
        spoiled = [output.clone() for output in outputs]
        call.restore()
        again = returned_tensors(call.run())
        pairs = zip(before, spoiled, again, strict=False)
        survived = [same_bits(now, bad) and not same_bits(now, was) for was, bad, now in pairs]
    finally:
        for output, was in ours:
            with contextlib.suppress(RuntimeError):
                output.copy_(was)
    call.restore()
    return before, survived


def _halve_and_reverse(tensor: Tensor) -> None:
    """Halve the values and reverse their order, which keeps their signs."""
    with contextlib.suppress(NotImplementedError, RuntimeError):
        tensor.copy_(_half(tensor).reshape(-1).flip(0).reshape(tensor.shape))


def _to_first(inputs: Inputs, tensor: Tensor) -> None:
    """Give a tensor its values for a first call: of integers, which may be indices, those of ``others``."""
    other = inputs.others.get(tensor.data_ptr())
    _halve_and_reverse(tensor) if other is None else tensor.copy_(other)


def _quarter_and_reverse(tensor: Tensor) -> None:
    """Halve what ``_halve_and_reverse`` gives: other values, to which the same cases of a function apply."""
    _halve_and_reverse(tensor)
    with contextlib.suppress(NotImplementedError, RuntimeError):
        tensor.copy_(_half(tensor))


def _halve_few(tensor: Tensor) -> None:
    """Halve one of ``RARE`` elements, at random places that no implementation can know."""
    generator, count = torch.Generator(tensor.device), max(1, tensor.numel() // RARE)
    generator.seed()
    with contextlib.suppress(NotImplementedError, RuntimeError):
        chosen = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
        chosen[torch.randint(tensor.numel(), (count,), generator=generator, device=tensor.device)] = True
        half = _half(tensor)
        tensor.copy_(torch.where(chosen.reshape(tensor.shape), half, tensor.to(half.dtype)))


def _half(tensor: Tensor) -> Tensor:
    return tensor / 2 if tensor.dtype.itemsize > 1 else tensor.float() / 2  # float8 has no arithmetic
