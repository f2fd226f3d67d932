"""Find calls that return a result that they have kept, instead of computing it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ..records.replaced import replaced
from . import clock as time
from . import ranks
from .call import Call
from .correctness import same_bits
from .nested import returned_tensors

RARE = 1024  # one of so many elements changes when few of them do
ALONE = 8  # so many inputs are also changed alone
ALONE_S = 0.5  # but none after so many seconds: a call may take long on a CPU
UNCHANGED = "the outputs did not change with the inputs"
AGAIN = "the outputs of an earlier call were returned again, although they had been overwritten"


def kept_result(call: Call) -> str:
    """Return how ``call`` was seen to return a kept result; "" if it computes the result each time.

    Three calls test this: one after the previous outputs were overwritten, one with all floating-point inputs halved
    and reversed, and one with a few random elements halved. The values change in the same memory, so the test finds
    results that are kept by identity, address, version or a few elements of the inputs. Further calls change one input
    each, for what is kept of a part of the inputs, or for the values of a part. A kept result is reported only if it is
    wrong for the changed inputs: a mask does not depend on them. Integers do not change, since they may be indices.
    Inputs and outputs are restored. A call that lacks memory, or fails for the other values, is not reported.
    """
    if not call.inputs or not call.judge_anew:
        return ""
    inputs = [x for x in call.inputs if x.numel() and (x.is_floating_point() or (x.is_complex() and not x.is_conj()))]
    floats = list(map(_numbers, inputs))
    try:
        before, survived = _overwritten(call)
        if not floats:  # other integers may be no valid indices
            return ranks.current.first(AGAIN if any(survived) else "")
        originals = [tensor.clone() for tensor in floats]
        for change in (_halve_and_reverse, _halve_few):
            with _changed(call, floats, originals, change) as after:
                if len(before) == len(after):
                    mixed = [was if kept else now for was, now, kept in zip(before, after, survived, strict=True)]
                    if wrong := _if_wrong(UNCHANGED, all(map(same_bits, before, after)), call, after):
                        return wrong
                    if wrong := _if_wrong(AGAIN, any(survived), call, mixed):
                        return wrong
        return _kept_of_one(call, inputs, originals, before) if len(floats) > 1 else ""
    except Exception:  # too little memory, or values that the call does not take
        if ranks.current.count > 1:  # the others wait
            raise
        return ""


def _kept_of_one(call: Call, inputs: Sequence[Tensor], originals: Sequence[Tensor], before: Sequence[Tensor]) -> str:
    """Return of which input ``call`` keeps what it computed; "" if of none.

    Each input alone gets other values, parameters last. It is reported if the outputs stay the same and are wrong,
    although they change if the input moves in memory, or are right if all inputs get other values. So an input that the
    call never reads, such as a mask that it knows, is not reported.
    """
    began = time.perf_counter()
    alone = sorted(zip(inputs, originals, strict=True), key=lambda pair: isinstance(pair[0], torch.nn.Parameter))
    for x, original in alone[:ALONE]:
        if ranks.current.any(time.perf_counter() - began > ALONE_S):
            break
        with _changed(call, [_numbers(x)], [original], _halve_and_reverse) as after:
            if not _same(before, after) or not (wrong := _if_wrong(UNCHANGED, True, call, after)):
                continue
            with replaced(x, "data", x.data.clone()):
                elsewhere = [output.clone() for output in returned_tensors(call.run())]
                call.restore()
        with _changed(call, [*map(_numbers, inputs)], originals, partial(_halve_and_reverse, factor=0.75)) as after:
            if not _same(before, elsewhere) or not _if_wrong(UNCHANGED, True, call, after):
                return f"{wrong.removesuffix('s')} of shape {tuple(x.shape)}"
    return ""


def _same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return whether two calls returned the same bits, on all ranks."""
    return not ranks.current.any(len(first) != len(second) or not all(map(same_bits, first, second)))


@contextlib.contextmanager
def _changed(
    call: Call, inputs: Sequence[Tensor], originals: Sequence[Tensor], change: Callable[[Tensor], None]
) -> Iterator[list[Tensor]]:
    """Yield what ``call`` returns for changed ``inputs``, which hold what the call was given; then restore them."""
    try:
        for tensor in inputs:
            change(tensor)
        given = [tensor.clone() for tensor in inputs]
        if call.reset:  # of inputs that the call has copied, or of the inputs themselves
            call.restore()
            _fill(inputs, given)
        after = returned_tensors(call.run())
        if call.reset:  # judge by what the call was given, not by what it has made of that
            after = [output.clone() for output in after]
            call.restore()
            _fill(inputs, given)
        yield after
    finally:
        _fill(inputs, originals)
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
    inputs = set(map(_storage, call.inputs))
    outputs = returned_tensors(call.run())
    before = [output.clone() for output in outputs]
    ours = [(out, was) for out, was in zip(outputs, before, strict=True) if _storage(out) not in inputs]
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


def _fill(inputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(inputs, values, strict=True):
        tensor.copy_(value)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _halve_and_reverse(tensor: Tensor, factor: float = 0.5) -> None:
    """Halve the values, or multiply them by another factor, and reverse their order, which keeps their signs."""
    with contextlib.suppress(NotImplementedError, RuntimeError):
        tensor.copy_(_times(tensor, factor).reshape(-1).flip(0).reshape(tensor.shape))


def _halve_few(tensor: Tensor) -> None:
    """Halve one of ``RARE`` elements, at random places that no implementation can know."""
    generator, count = torch.Generator(tensor.device), max(1, tensor.numel() // RARE)
    generator.seed()
    with contextlib.suppress(NotImplementedError, RuntimeError):
        chosen = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
        chosen[torch.randint(tensor.numel(), (count,), generator=generator, device=tensor.device)] = True
        half = _times(tensor, 0.5)
        tensor.copy_(torch.where(chosen.reshape(tensor.shape), half, tensor.to(half.dtype)))


def _times(tensor: Tensor, factor: float) -> Tensor:
    return tensor * factor if tensor.dtype.itemsize > 1 else tensor.float() * factor  # float8 has no arithmetic
