"""Timing of functions in the process of a caller, which is left as it was: what ``runner.bench`` measures; do_bench.

While a function is timed, other threads that time wait. Generators of torch have their state back afterwards, and so do
arguments that a call changes. CUPTI is asked once per machine, for the time of an empty kernel, and never while a
profiler is attached.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from runner.experiment.case import Scalar
from runner.timing import Batches, Call, TimingSettings, Work
from runner.timing import clock as time
from runner.timing.arguments import Inputs, bound, device_of, referenced_tensors
from runner.timing.procedure import take, verdict
from runner.timing.reference import Reference, returns_cached_result

Function = Callable[..., Any]

# As in conf/measure/benchmark.yaml, which takes a package to read; a test compares the two.
DEFAULTS = TimingSettings(
    cold_l2=True,
    instrument="auto",
    captures=20,
    buffer_sets=10,
    cupti_check=False,  # it starts CUPTI
    measured_peak=False,  # it may take seconds
    warmup_s=0.02,
    samples=800,
    max_s=0.6,
    paired_rounds=40,
    race=False,
    sustained_s=0.0,
    keep_samples=False,
    target_pct=0.5,
    target_cpu_pct=2.0,
)
GPU_S = 0.15  # for the samples of one function on a GPU, unless the caller says otherwise
FURTHER_CALLS = 2  # on a GPU: torch.compile with CUDA graphs warms up, records, and only then replays
SPARE = 1 / 16  # of the GPU's memory: with less free, torch's cache is emptied first, since a capture cannot do that
SLOW_S = 0.05  # calls that take longer are made no more often than needed

_lock = threading.RLock()  # re-entrant: the first call of a function may tune itself with ``do_bench``


@dataclass(frozen=True)
class Options:
    """What to measure of each function."""

    settings: TimingSettings = DEFAULTS
    device: torch.device | None = None  # None: that of the tensors that the functions use
    grad: bool = False  # backward too
    reference: Function | None = None
    atol: float | None = None
    rtol: float | None = None
    flops: int | None = None
    bytes_min: int | None = None
    measure_peak: bool = False
    gpu_s: float | None = GPU_S  # for the samples of one function on a GPU; None: ``settings.max_s``


@dataclass(frozen=True)
class Measured:
    """What was measured of one function."""

    columns: Mapping[str, Scalar]
    samples_us: Sequence[float] = ()  # none if its outputs are wrong: then it was not timed
    wrong: str = ""  # what is wrong with its outputs


def measure(
    functions: Sequence[Function], args: Sequence[Any], options: Options
) -> tuple[str, list[Measured], list[Batches]]:
    """Time ``functions`` of the same ``args``; those that are correct also in paired rounds, if there are several.

    Return the device, "cpu" or the name of the GPU; the figures of each function; the batches of the correct ones in
    their order, none if there is one or they are too slow.

    Raises:
        Exception: what a function or the reference raises.
        RuntimeError: a CUDA graph is being captured.

    """
    with preserved_state():
        inputs = Inputs(args)
        device = options.device or device_of(functions, args, inputs)
        try:
            with on(device):
                found, batches = _measure(functions, args, options, device.type, inputs)
                return torch.cuda.get_device_name() if device.type == "cuda" else "cpu", found, batches
        finally:
            inputs.restore()


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
    """Make ``device`` the current one; if it is a GPU, capture graphs without a trace in the caller's memory."""
    if device.type != "cuda":
        yield
        return
    from runner.timing import capture

    with torch.cuda.device(device), ExitStack() as stack:
        stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state())
        stack.callback(setattr, capture, "keep_cache", capture.keep_cache)
        capture.keep_cache = True
        free, total = torch.cuda.mem_get_info()
        if free < SPARE * total:
            torch.cuda.empty_cache()
        yield
        torch.cuda.synchronize()


def _measure(
    functions: Sequence[Function], args: Sequence[Any], options: Options, kind: str, inputs: Inputs
) -> tuple[list[Measured], list[Batches]]:
    reference = Reference(options, args) if options.reference else None  # before a function may change its arguments
    runs = [bound(function, args, options) for function in functions]
    seconds = [_first_calls(run, inputs, kind) for run in runs]
    inputs.forget_unchanged()
    settings, work = options.settings, _work(options, inputs)
    if kind == "cuda":
        from runner.timing import measured_peak

        peak = work is not None and (options.measure_peak or measured_peak.kept_peak() is not None)
        settings = replace(settings, measured_peak=peak, max_s=options.gpu_s or settings.max_s)
    reset = inputs.restore if inputs.changed else None
    found, calls = [], []
    for run, function, one_s in zip(runs, functions, seconds, strict=True):
        inputs.restore()  # the samples of the previous one end with a call
        checked, judge = reference.check(run, inputs) if reference else ({}, None)
        wrong = str(checked.pop("reason", ""))
        plain = not (options.grad or reset or wrong) and one_s < SLOW_S
        if reference and plain and returns_cached_result(function, args):
            wrong = "the outputs did not change with the inputs: the function returns a cached result"
        if wrong:
            found.append(Measured({**checked, "correct": False}, wrong=wrong))
            continue
        call = Call(run, reset, work, judge, inputs.movable)
        one = _time(call, settings, kind, {**checked, **({"mutates_inputs": True} if reset else {})})
        if not one.wrong:
            calls.append((call, one.columns))
        found.append(one)
    longer = replace(settings, max_s=options.settings.max_s)
    return found, (longer.compare(calls, kind) if len(calls) > 1 else None) or []


def _first_calls(run: Callable[[], object], inputs: Inputs, kind: str) -> float:
    """Call ``run`` until it compiles nothing any more, and restore what it changes. Return the seconds of its last."""
    seconds = 0.0
    for turn in range(1 + (FURTHER_CALLS if kind == "cuda" else 0)):
        started = time.perf_counter()
        try:
            run()
            if kind == "cuda":
                torch.cuda.synchronize()
        finally:
            seconds = time.perf_counter() - started
            if turn == 0:
                inputs.note_changes()
            inputs.restore()
    return seconds


def _time(call: Call, settings: TimingSettings, kind: str, columns: Mapping[str, Scalar]) -> Measured:
    """Time ``call`` on "cpu" or "cuda". ``columns``: what is known of it already."""
    if kind == "cpu":
        settings = replace(settings, target_pct=settings.target_cpu_pct)
    module = import_module(f".{kind}", __package__)
    try:
        figures, taken, instrument = module.measure(call, settings)
    except torch.OutOfMemoryError:  # the copies of the inputs need memory too
        settings, call = replace(settings, buffer_sets=1), replace(call, inputs=())
        figures, taken, instrument = module.measure(call, settings)
    if kind == "cuda":
        figures |= _unknown_offset(figures)
    wrong = next(filter(None, map(call.judge, instrument.outputs())), "") if call.judge else ""
    if call.work:
        figures |= {"flops": call.work.flops, "bytes_min": call.work.bytes_min}
    figures |= verdict(figures, settings.target_pct, wrong)
    if wrong:
        figures["correct"] = False
    return Measured({**columns, **figures, "threads": torch.get_num_threads()}, taken.samples_us, wrong)


def _unknown_offset(figures: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the columns of an interval that is wider by what is not known of an empty kernel, and say so."""
    from runner.timing import calibration

    if "timestamps" not in str(figures["instrument"]):
        return {}
    if calibration.empty_kernel_is_assumed():
        why, error_us = "a profiler is attached", calibration.ASSUMED_ERROR_US
    elif calibration.empty_kernel_us() == 0:
        why, error_us = "CUPTI is not available", calibration.ASSUMED_US + calibration.ASSUMED_ERROR_US
    else:
        return {}
    us = figures["gpu_us"]
    half_us = math.hypot(figures["high_us"] - us, error_us)
    said = f"the time of an empty kernel is not known here, since {why}: the interval is wider"
    return {
        "low_us": max(0.0, us - half_us),
        "high_us": us + half_us,
        "interval_pct": 100 * half_us / us if us > 0 else None,
        "instrument_note": "; ".join(filter(None, [figures["instrument_note"], said])),
    }


def _work(options: Options, inputs: Inputs) -> Work | None:
    if options.flops is None and options.bytes_min is None:
        return None
    dtype = next((one.dtype for one in inputs.tensors if one.is_floating_point()), torch.float32)
    tf32 = torch.get_float32_matmul_precision() != "highest"
    return Work(options.flops or 0, options.bytes_min or 0, str(dtype).removeprefix("torch."), tf32)


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **_: object,
) -> Any:
    """Time ``fn`` as ``triton.testing.do_bench`` does, by this project's instruments; for ``@triton.autotune`` too.

    Args:
        fn: called without arguments. It is timed on the GPU, or on the CPU if there is none, or if all tensors that it
            names are there.
        warmup: least milliseconds of warm-up.
        rep: most milliseconds of samples. They end earlier when the interval of the time is within 0.5 %.
        grad_to_none: tensors whose ``.grad`` is set to None before each call, outside of the time.
        quantiles: those of the times to return, instead of what ``return_mode`` says.
        return_mode: "mean", "median", "min", "max", or "all" for a list of all times in their order.

    Returns:
        Milliseconds: a number, or a list of them for "all" and for several ``quantiles``.

    Raises:
        ValueError: there is no such ``return_mode``.

    """
    modes: dict[str, Callable[[list[float]], Any]] = {"mean": fmean, "median": median, "min": min, "max": max}
    modes["all"] = list
    if return_mode not in modes:
        raise ValueError(f"return_mode={return_mode!r}: give one of {', '.join(modes)}")
    named = [*referenced_tensors(fn)] if torch.cuda.is_available() else [torch.empty(0)]
    on_gpu = not named or any(one.is_cuda for one in named)
    kind = "cuda" if on_gpu else "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    settings = replace(DEFAULTS, warmup_s=warmup / 1e3, max_s=rep / 1e3)
    with preserved_state(), on(device):
        fn()
        call = Call(fn, partial(_drop, grad_to_none) if grad_to_none else None)
        times = [max(0.0, us / 1e3) for us in _samples_us(call, settings, kind)]
    if quantiles is None:
        return modes[return_mode](times)
    found = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor(quantiles, dtype=torch.float64)).tolist()
    return found[0] if len(found) == 1 else found


def _samples_us(call: Call, settings: TimingSettings, kind: str) -> Sequence[float]:
    if kind == "cpu":
        from runner.timing.cpu import PerfCounter

        return take(PerfCounter(call.run, call.reset), settings).samples_us
    from runner.timing import calibration, cuda, instruments

    torch.cuda.synchronize()
    cuda.warm_up(False)
    instrument, _ = instruments.choose(call, settings)
    return calibration.undisturbed(lambda: take(instrument, settings), [instrument])[0].samples_us


def _drop(tensors: Sequence[Tensor]) -> None:
    for one in tensors:
        one.grad = None
