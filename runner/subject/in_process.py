"""Timing of functions in the process of a program, for ``runner.bench`` and ``do_bench``.

The process is left as it was: generators of torch, and arguments that a call changes, are restored. Other threads that
time functions wait. CUPTI is used once per machine, for the time of an empty kernel, and not while a profiler is
attached.
"""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..kernels.unsupported import Unsupported
from ..records.case import Scalar
from ..records.replaced import replaced
from ..timing import ranks
from ..timing.arguments import Inputs, device_of
from ..timing.call import Batches, Call, Work
from ..timing.correctness import Outputs
from ..timing.nested import tensors
from ..timing.peak_memory import peak_bytes_of_program
from ..timing.settings import default_settings
from ..timing.timer import Timer
from ..timing.verdict import UNTRUE
from .gradients import Gradients, WithGradients
from .interpreter import interpreting, untimed
from .path import TimedCall, checked, first_calls, on_same_inputs
from .tolerance import Judge

Function = Callable[..., Any]

# CUPTI is not started here, and no peak is measured, which may take seconds.
DEFAULTS = replace(default_settings(Timer), cupti_check=False, measured_peak=False)
GPU_S = 0.15  # for the samples of one function on a GPU, unless the caller says otherwise
SPARE = 1 / 16  # of the GPU's memory: with less free, torch's cache is emptied first, since a capture cannot do that

_lock = threading.RLock()  # re-entrant: the first call of a function may tune itself with ``do_bench``


@dataclass(frozen=True)
class Options:
    """Options for the measurement of functions."""

    settings: Timer = DEFAULTS
    device: torch.device | None = None  # None: the device of the tensors that the functions use
    grad: bool = False  # forward and backward
    reference: Function | None = None
    atol: float | None = None
    rtol: float | None = None
    tolerance: float = 1.0  # factor on limits that follow from the reference
    flops: int | None = None
    bytes_min: int | None = None
    measure_peak: bool = False
    ranks: bool = False  # all ranks of torch.distributed measure together
    gpu_s: float | None = GPU_S  # for the samples of one function on a GPU; None: ``settings.max_s``
    goes_on: bool = False  # a function that raises costs its own row alone


@dataclass(frozen=True)
class Measured:
    """The measurement of one function."""

    columns: Mapping[str, Scalar]
    samples_us: Sequence[float] = ()  # empty if the function was not timed, since its outputs are wrong
    wrong: str = ""  # the error of its outputs, or empty
    error: Exception | None = None  # that it raised
    refused: str = ""  # why it was not timed although it ran

    @property
    def is_timed(self) -> bool:
        """Whether it has a time that holds."""
        return not (self.wrong or self.error or self.refused)


def measure(
    functions: Sequence[Function], args: Sequence[Any], options: Options
) -> tuple[str, list[Measured], list[Batches]]:
    """Time ``functions`` of the same ``args``; several correct functions are also timed in paired rounds.

    Return the device, "cpu" or the name of the GPU, or "" if it is not known; the measurement of each function; and the
    batches of the correct functions in their order, or none if there is only one or they are too slow.

    Raises:
        Exception: from the reference; or from a function, unless ``options.goes_on``.
        RuntimeError: a CUDA graph is being captured.

    """
    name, measured, batches = "", list[Measured](), list[Batches]()
    try:
        with preserved_state(), ranks.of_program() if options.ranks else nullcontext():
            device = options.device or device_of(functions, args)
            with on(device):
                name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
                batches = _measure(functions, args, options, device.type, measured)
    except Exception as error:
        if not (options.goes_on and measured):
            raise
        measured += [Measured({}, error=without_locals(error)) for _ in functions[len(measured) :]]
    return name, measured, batches


@contextmanager
def preserved_state() -> Iterator[None]:
    """Keep other threads from timing, and restore torch's generators afterwards.

    Raises:
        RuntimeError: the caller captures a CUDA graph now.

    """
    started = torch.cuda.is_available() and torch.cuda.is_initialized()
    if started and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured, so nothing can be timed: call this outside of it")
    with _lock, ExitStack() as stack:
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        if started:
            stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(), torch.cuda.current_device())
        yield


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Make ``device`` the current device; on a GPU, capture graphs without changing the caller's memory."""
    if device.type != "cuda":
        yield
        return
    from ..timing import capture

    with torch.cuda.device(device), ExitStack() as stack:
        stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state())
        stack.enter_context(replaced(capture, "keep_cache", True))
        free, total = torch.cuda.mem_get_info()
        if free < SPARE * total:
            torch.cuda.empty_cache()
        yield
        torch.cuda.synchronize()


def _measure(
    functions: Sequence[Function], args: Sequence[Any], options: Options, kind: str, measured: list[Measured]
) -> list[Batches]:
    """Add the measurement of each function to ``measured``, and return the batches of the paired rounds."""
    asked = f"{len(functions)} functions, {options.settings}"
    if len({*ranks.current.gather(asked, "measurement")}) > 1:
        raise ValueError("the ranks ask for different functions or settings: call it with the same ones on each")
    # Before a function may change its arguments.
    expected = _expected(options.reference, args, options) if options.reference else None
    settings, work = options.settings, _work(options, args)
    if kind == "cuda":
        from ..timing import measured_peak

        peak = work is not None and (options.measure_peak or measured_peak.kept_peak() is not None)
        settings = replace(settings, measured_peak=peak, max_s=options.gpu_s or settings.max_s)
    calls: list[TimedCall] = []
    with ExitStack() as undo:
        for function in functions:
            inputs = Inputs(args)
            with suppress(torch.OutOfMemoryError):  # without memory for copies, changes are not noticed
                inputs.copy()
            undo.callback(inputs.restore)
            run = partial(function, *args) if args else function
            call = Call(run, work=work)
            try:
                call = replace(call, run=Gradients(function, args)) if options.grad else call
                call, timed = _one(call, expected, inputs, args, options, settings, kind)
            except Exception as error:
                if not options.goes_on:
                    raise
                timed = Measured({}, error=without_locals(error))
                inputs.restore()
            call.restore()
            if timed.is_timed:
                calls.append((call, timed.columns))
            measured.append(timed)
        batches: list[Batches] = []
        try:
            if len(calls) > 1:
                longer = replace(settings, max_s=options.settings.max_s)
                batches = longer.compare(on_same_inputs(calls), kind) or []
        except Exception as error:  # the times of the functions stay
            if options.ranks or not (options.goes_on or isinstance(error, torch.OutOfMemoryError)):
                raise
            warnings.warn(f"no paired rounds: {type(error).__name__}: {error}", stacklevel=2)
        right = [place for place, timed in enumerate(measured) if timed.is_timed]
        for place, batch in zip(right, batches, strict=False):
            if batch.wrong:
                measured[place] = _wrong(measured[place].columns, f"in the paired rounds: {batch.wrong}")
        return [batch for batch in batches if not batch.wrong]


def _one(
    call: Call,
    expected: Outputs | None,
    inputs: Inputs,
    args: Sequence[Any],
    options: Options,
    settings: Timer,
    kind: str,
) -> tuple[Call, Measured]:
    """Call, check and time one function. Return its call with what undoes its changes."""
    wrong = ""
    with interpreting() as interpreters:
        try:
            call, columns = first_calls(call, inputs, kind, peak=False)
        except Unsupported as error:
            if options.grad:
                raise ValueError(f"grad=True: {error}") from None
            raise
        if expected and options.reference:
            expected_now = partial(_expected, options.reference, args, options)
            call, checks, wrong = checked(call, expected, expected_now, inputs)
            columns |= checks
    if interpreters and not wrong:
        return call, Measured(columns, refused=untimed(interpreters, checked=columns.get("correct") is True))
    return call, Measured(columns, wrong=wrong) if wrong else _timed(call, settings, kind, columns)


def without_locals(error: Exception) -> Exception:
    """Return ``error`` with a traceback that does not hold the tensors of its functions."""
    traceback.clear_frames(error.__traceback__)
    return error


def _expected(reference: Function, args: Sequence[Any], options: Options) -> Outputs:
    """Return the outputs that ``reference`` expects for the values that ``args`` hold now."""
    reference = WithGradients(reference, outputs=True) if options.grad else reference
    return Judge(reference, args, tf32=None, factor=options.tolerance, atol=options.atol, rtol=options.rtol)


def _timed(call: Call, settings: Timer, kind: str, columns: Mapping[str, Scalar]) -> Measured:
    """Time ``call`` on "cpu" or "cuda". ``columns``: its figures so far."""
    try:
        figures, samples_us = settings.timed(call, kind)
    except torch.OutOfMemoryError:  # the copies of the inputs need memory too
        call = replace(call, inputs=())
        figures, samples_us = replace(settings, buffer_sets=1).timed(call, kind)
    if call.work:
        figures |= {"flops": call.work.flops, "bytes_min": call.work.bytes_min}
    columns = {**columns, **figures, "threads": torch.get_num_threads()}
    with suppress(torch.OutOfMemoryError):
        call.restore()
        columns["peak_mem_bytes"] = peak_bytes_of_program(call.run, kind)
    if columns["verdict"] == "wrong":
        return _wrong(columns, str(columns["verdict_reason"]))
    if (limit := columns.get("recompile_limit")) and columns["verdict"] not in UNTRUE:
        columns |= {"verdict": "fallback", "verdict_reason": limit}
    return Measured(columns, samples_us)


def _wrong(columns: Mapping[str, Scalar], reason: str) -> Measured:
    return Measured({**columns, "correct": False, "verdict": "wrong", "verdict_reason": reason}, wrong=reason)


def _work(options: Options, args: Sequence[Any]) -> Work | None:
    if options.flops is None and options.bytes_min is None:
        return None
    dtype = next((tensor.dtype for tensor in tensors(args) if tensor.is_floating_point()), torch.float32)
    tf32 = torch.get_float32_matmul_precision() != "highest"
    return Work(options.flops or 0, options.bytes_min or 0, str(dtype).removeprefix("torch."), tf32)
