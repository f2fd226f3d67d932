"""The measuring path that a worker and ``bench`` share: first calls, check, and calls for paired rounds.

A ``Call`` comes in, and goes out with a reset of the inputs that it changes and with what judges its further outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..records.case import Scalar
from ..timing import clock as time
from ..timing import nested, ranks
from ..timing.arguments import Inputs, is_watched
from ..timing.call import Call, Outputs, in_turn
from ..timing.correctness import ERRORS, CheckResult, repeats, same_bits
from ..timing.kept_result import forgiven, keeps_first_values, other_values
from ..timing.nested import returned_paths, returned_tensors, tensors
from ..timing.peak_memory import peak_bytes
from ..timing.unwritten import fill_cached, filled
from .recompiles import compilations, eagerly, recompiles

TimedCall = tuple[Call, Mapping[str, Scalar]]  # with the figures of its row
KEEPS = "; it is right for other values, which the inputs had at its first call: compute from the inputs at each call"
FURTHER_CALLS = {"cpu": 0, "cuda": 2}  # torch.compile with CUDA graphs warms up and records before it replays


def remembered(compute: Callable[[], Outputs], inputs: Sequence[torch.Tensor]) -> Callable[[], Outputs]:
    """Return a function that returns ``compute()``, computed again only if ``inputs`` hold other values than last.

    Each wrong implementation of a problem is judged for the same values, and a reference may take minutes.
    """
    last: list[Any] = []

    def expected_now() -> Outputs:
        now = [x.detach().clone() for x in inputs if is_watched(x)]  # no test changes the others
        if ranks.current.any(not last or not all(map(same_bits, now, last[0]))):
            last[:] = now, compute()
        return last[1]  # type: ignore[no-any-return]

    return expected_now


def first_calls(
    call: Call, inputs: Inputs, device: str, *, peak: bool, judged: bool = True
) -> tuple[Call, dict[str, Scalar]]:
    """Call until everything is compiled, on "cpu" or "cuda": first for other values of the inputs, if it is judged.

    Args:
        call: it may change its inputs.
        inputs: with copies, so that changes are noticed; the copies of unchanged tensors are freed.
        device: where it runs.
        peak: measure the peak memory on a GPU, which resets torch's own record of it.
        judged: the outputs are going to be checked.

    Returns:
        The call with its inputs, and with a reset if it changes them; and the columns ``first_call_s``,
        ``mutates_inputs``, with ``peak`` on a GPU ``first_call_peak_bytes``, and those of torch.compile.

    """
    first: dict[str, float] = {}
    compiled = compilations()
    if judged and inputs.numbers and call.reads_inputs and not call.keeps_forward:
        with forgiven(), other_values(call, inputs), eagerly():  # sizes inside may depend on values
            first = _first_call(call, device, peak=peak)
    try:
        later = _first_call(call, device, peak=peak)
    except BaseException:
        with suppress(Exception):  # the GPU may have failed for good
            inputs.note_changes()
            inputs.restore()
        raise
    inputs.note_changes()
    inputs.restore()
    columns: dict[str, Scalar] = {name: max(value, first.get(name, value)) for name, value in later.items()}
    columns["mutates_inputs"] = changed = ranks.current.any(inputs.changed or inputs.replaces)
    if changed:
        call = replace(call, reset=in_turn(call.restore, inputs.restore))
    for _ in range(FURTHER_CALLS[device]):
        call.restore()
        fill_cached([(output.nbytes, output.device) for output in returned_tensors(call.run()) if output.is_cuda])
    synchronize(device)
    columns |= recompiles(call, compiled)
    return replace(call, inputs=inputs.movable if call.reads_inputs else ()), columns


def _first_call(call: Call, device: str, *, peak: bool) -> dict[str, float]:
    synchronize(device)
    started = time.perf_counter()
    columns: dict[str, float] = {}
    if peak and device == "cuda":
        columns["first_call_peak_bytes"] = peak_bytes(call.run, device)
    else:
        call.run()
        synchronize(device)
    return {**columns, "first_call_s": time.perf_counter() - started}


def checked(
    call: Call, expected: Outputs, expected_now: Callable[[], Outputs], inputs: Inputs
) -> tuple[Call, dict[str, Scalar], str]:
    """Compare what ``call`` returns, and the inputs that it changes, with what is expected.

    Return the call with what judges its further outputs, the columns of the check, and what is wrong, or "".
    ``expected_now`` gives what is expected for the values that the inputs hold when it is called.
    """
    call.restore()
    with filled():
        outputs = call.run()
    changed = inputs.now
    result = _of_all_ranks(_checked_twice(lambda: expected.check(outputs, changed)))
    columns, reason = result.columns(), result.reason
    if result.compared:
        columns["bitwise_repeatable"] = not ranks.current.any(not repeats(call, outputs, changed or ()))
    call.restore()
    if ranks.current.any(tensors(outputs)):
        judge = partial(judged, like(outputs), returned_paths(outputs))
        right = replace(
            call,
            judge=lambda outputs: _checked_twice(lambda: judge(expected, outputs)).reason,
            judge_anew=lambda outputs: judge(expected_now(), outputs).reason,
        )
        if not reason:
            call = right
        elif inputs.numbers and ranks.current.any(expected.check_tensors(returned_tensors(outputs)).reason):
            reason += KEEPS if keeps_first_values(right, inputs, returned_tensors(outputs)) else ""
    return call, columns, reason


def judged(like: object, paths: Sequence[str], expected: Outputs, outputs: Sequence[Any]) -> CheckResult:
    """Check the tensors that a further call returned, in a result ``like`` the first one, which had ``paths``."""
    # For check() alone: a reference would also be compared with the numbers that the first call returned.
    whole: object = None
    if like is not None and expected.takes_whole:
        with suppress(Exception):  # other tensors than the first call returned, or a class that is not made so
            whole = nested.refilled(like, outputs)
    return expected.check_tensors(outputs, paths) if whole is None else expected.check(whole)


def like(outputs: object) -> object:
    """Return ``outputs`` with tensors of the same shapes that take no memory; None if its classes refuse them."""
    with suppress(Exception):
        return nested.mapped(lambda tensor: torch.empty((), dtype=tensor.dtype).expand(tensor.shape), outputs)
    return None


def _checked_twice(check: Callable[[], CheckResult]) -> CheckResult:
    """Return the result of ``check``; if a second one finds nothing wrong, a thread or a stream wrote in between."""
    result = check()
    if ranks.current.any(result.reason) and not check().reason and result.reason:  # on all ranks: it may communicate
        result.reason = "the outputs changed after the call had returned"
    return result


def _of_all_ranks(result: CheckResult) -> CheckResult:
    """Return the result of a check with the largest errors of any rank, and what is wrong, unknown or noted on any."""
    reason, unknown, note = map(ranks.current.first, (result.reason, result.unknown, result.note))
    compared = not ranks.current.any(not result.compared)
    errors = {name: max(ranks.current.gather(getattr(result, name))) for name in ERRORS}
    return replace(result, compared=compared, reason=reason, unknown=unknown, note=note, **errors)


def on_same_inputs(calls: Sequence[TimedCall]) -> Sequence[TimedCall]:
    """Return ``calls`` with resets that also undo changes of the shared inputs by other calls.

    If no call changes its inputs, ``calls`` are returned without a reset, since a CPU times calls with a reset singly.
    """
    undo = [call.restore for call, figures in calls if figures.get("mutates_inputs")]
    if not undo:
        return calls
    return [(replace(call, reset=in_turn(*undo, call.restore)), figures) for call, figures in calls]


def synchronize(device: str) -> None:
    """Wait for the GPU, which raises its late errors."""
    if device == "cuda":
        torch.cuda.synchronize()
