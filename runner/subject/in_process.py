"""Timing of functions in the process of a program, for ``runner.bench`` and ``do_bench``.

The process is left as it was: generators of torch, and arguments that a call changes, are restored. Other threads that
time functions wait. CUPTI is used once per machine, for the time of an empty kernel, and not while a profiler is
attached.
"""

import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from ..timing.call import Batches, Call, Outputs, Work
from ..timing.nested import leaves, tensors
from ..timing.peak_memory import peak_bytes_of_program
from ..timing.settings import default_settings
from ..timing.timer import Timer
from ..timing.verdict import UNTRUE
from .gradients import Gradients, WithGradients
from .interpreter import interpreting, untimed
from .path import TimedCall, checked, first_calls, on_same_inputs, remembered
from .tolerance import Judge

Function = Callable[..., Any]

# CUPTI is not started here, and no peak is measured, which may take seconds.
DEFAULTS = replace(default_settings(Timer), cupti_check=False, measured_peak=False)
GPU_S = 0.15  # for the samples of one function on a GPU, unless the caller says otherwise
SPARE = 1 / 16  # share of the GPU's memory: with less free, torch's cache is emptied, since a capture cannot do that

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
    goes_on: bool = False  # go on with the other functions if one raises
    names: Sequence[str] = ()  # of several functions, which all ranks must give in one order


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
        """Whether it has a valid time."""
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
        with preserved_state(args), ranks.of_program() if options.ranks else nullcontext():
            device = options.device or device_of(functions, args)
            with on(device):
                name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
                batches = _Session(functions, args, options, device.type).measure(measured)
    except Exception as error:
        if not (options.goes_on and measured):
            raise
        measured += [Measured({}, error=without_locals(error)) for _ in functions[len(measured) :]]
    return name, measured, batches


@contextmanager
def preserved_state(args: Sequence[Any] = ()) -> Iterator[None]:
    """Keep other threads from timing, and restore torch's generators and those among ``args`` afterwards.

    Raises:
        RuntimeError: the caller captures a CUDA graph now.

    """
    started = torch.cuda.is_available() and torch.cuda.is_initialized()
    if started and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured, so nothing can be timed: call this outside of it")
    with _lock, torch.random.fork_rng([torch.cuda.current_device()] if started else []), ExitStack() as undo:
        for generator in (leaf for _, leaf in leaves(args) if isinstance(leaf, torch.Generator)):
            undo.callback(generator.set_state, generator.get_state())
        yield


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Make ``device`` the current device; on a GPU, capture graphs without changing the caller's memory."""
    if device.type != "cuda":
        yield
        return
    from ..timing import capture

    with torch.cuda.device(device), torch.random.fork_rng([device]), replaced(capture, "keep_cache", True):
        free, total = torch.cuda.mem_get_info()
        if free < SPARE * total:
            torch.cuda.empty_cache()
        yield
        torch.cuda.synchronize()


class _Session:
    """Functions of the same arguments, which are checked and timed on ``kind``, "cpu" or "cuda"."""

    def __init__(self, functions: Sequence[Function], args: Sequence[Any], options: Options, kind: str) -> None:
        """Run the reference, before a function may change its arguments."""
        self._functions, self._args, self._options, self._kind = functions, args, options, kind
        asked = [*options.names, len(functions), options.grad, options.reference is not None, str(options.settings)]
        if any(other != asked for other in ranks.current.gather(asked, "measurement")):
            reason = "the ranks ask for different functions or settings"
            raise ValueError(f"{reason}: call it with the same ones on each, in one order")
        self._paths: Collection[str] = ()  # of the reference's differentiable outputs
        self._expected = self._expected_now() if options.reference is not None else None
        self._now = remembered(self._expected_now, tensors(args))
        self._settings, self._work = options.settings, _work(options, args)
        if kind == "cuda":
            from ..timing import measured_peak

            peak = self._work is not None and (options.measure_peak or measured_peak.kept_peak() is not None)
            max_s = options.gpu_s or options.settings.max_s
            self._settings = replace(options.settings, measured_peak=peak, max_s=max_s)

    def measure(self, measured: list[Measured]) -> list[Batches]:
        """Add the measurement of each function to ``measured``, and return the batches of the paired rounds."""
        options, calls = self._options, list[TimedCall]()
        with ExitStack() as undo:
            for function in self._functions:
                inputs = Inputs(self._args)
                with suppress(torch.OutOfMemoryError):  # without memory for copies, changes are not noticed
                    inputs.copy()
                    # Numbers of one byte are data, such as weights and masks; wider ones may be places in memory.
                    data = [x for x in inputs.integers if x.itemsize == 1]
                    inputs.others = {x.data_ptr(): x.reshape(-1).flip(0).view(x.shape) for x in data}
                undo.callback(inputs.restore)
                call = Call(partial(function, *self._args) if self._args else function, work=self._work)
                try:
                    if options.grad:
                        with self._grad_named():
                            call = replace(call, run=Gradients(function, self._args, paths=self._paths))
                    call, timed = self._one(call, inputs)
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
                    longer = replace(self._settings, max_s=options.settings.max_s)
                    batches = longer.compare(on_same_inputs(calls), self._kind) or []
            except Exception as error:  # the times of the functions stay
                if options.ranks or not (options.goes_on or isinstance(error, torch.OutOfMemoryError)):
                    raise
                warnings.warn(f"no paired rounds: {type(error).__name__}: {error}", stacklevel=2)
            right = [place for place, timed in enumerate(measured) if timed.is_timed]
            for place, batch in zip(right, batches, strict=False):
                if batch.wrong:
                    measured[place] = _wrong(measured[place].columns, f"in the paired rounds: {batch.wrong}")
            return [batch for batch in batches if not batch.wrong]

    def _one(self, call: Call, inputs: Inputs) -> tuple[Call, Measured]:
        """Call, check and time one function. Return its call with what undoes its changes."""
        wrong = ""
        with interpreting() as interpreters:
            with self._grad_named():
                call, columns = first_calls(call, inputs, self._kind, peak=False, judged=bool(self._expected))
            if self._expected:
                call, checks, wrong = checked(call, self._expected, self._now, inputs)
                columns |= checks
                inputs.others = {}  # their memory
        if wrong:
            return call, Measured(columns, wrong=wrong)
        if interpreters:
            return call, Measured(columns, refused=untimed(interpreters, checked=columns.get("correct") is True))
        return call, self._timed(call, columns)

    def _expected_now(self) -> Outputs:
        """Return the outputs that the reference expects for the values that the arguments hold now."""
        options, reference = self._options, self._options.reference
        assert reference is not None
        reference = WithGradients(reference, outputs=True) if options.grad else reference
        factor, atol, rtol = options.tolerance, options.atol, options.rtol
        with self._grad_named():
            judge = Judge(reference, self._args, tf32=None, factor=factor, atol=atol, rtol=rtol)
        self._paths = getattr(reference, "paths", ())
        return judge

    @contextmanager
    def _grad_named(self) -> Iterator[None]:
        """Raise ValueError, which names the argument ``grad``, if gradients cannot be computed inside."""
        try:
            yield
        except Unsupported as error:
            if self._options.grad:
                raise ValueError(f"grad=True: {error}") from None
            raise

    def _timed(self, call: Call, columns: Mapping[str, Scalar]) -> Measured:
        """Time ``call``, whose figures so far are ``columns``."""
        try:
            figures, samples_us = self._settings.timed(call, self._kind)
        except torch.OutOfMemoryError:  # the copies of the inputs need memory too
            call = replace(call, inputs=())
            figures, samples_us = replace(self._settings, buffer_sets=1).timed(call, self._kind)
        if call.work:
            figures |= {"flops": call.work.flops, "bytes_min": call.work.bytes_min}
        columns = {**columns, **figures, "threads": torch.get_num_threads()}
        with suppress(torch.OutOfMemoryError):
            call.restore()
            columns["peak_mem_bytes"] = peak_bytes_of_program(call.run, self._kind)
        if columns["verdict"] == "wrong":
            return _wrong(columns, str(columns["verdict_reason"]))
        if (limit := columns.get("recompile_limit")) and columns["verdict"] not in UNTRUE:
            columns |= {"verdict": "fallback", "verdict_reason": limit}
        return Measured(columns, samples_us)


def without_locals(error: Exception) -> Exception:
    """Return ``error`` with a traceback that does not hold the tensors of its functions."""
    traceback.clear_frames(error.__traceback__)
    return error


def _wrong(columns: Mapping[str, Scalar], reason: str) -> Measured:
    return Measured({**columns, "correct": False, "verdict": "wrong", "verdict_reason": reason}, wrong=reason)


def _work(options: Options, args: Sequence[Any]) -> Work | None:
    if options.flops is None and options.bytes_min is None:
        return None
    dtype = next((tensor.dtype for tensor in tensors(args) if tensor.is_floating_point()), torch.float32)
    tf32 = torch.get_float32_matmul_precision() != "highest"
    return Work(options.flops or 0, options.bytes_min or 0, str(dtype).removeprefix("torch."), tf32)
