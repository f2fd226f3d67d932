"""Timing of functions in the process of a caller, which is left as it was: what ``runner.bench`` measures; do_bench.

While a function is timed, other threads that time wait. Generators of torch have their state back afterwards, and so do
arguments that a call changes. CUPTI is asked once per machine, for the time of an empty kernel, and never while a
profiler is attached.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, equal

from runner.experiment.case import Scalar
from runner.timing import Batches, Call, Expected, TimingSettings, Work
from runner.timing import clock as time
from runner.timing.call import Instrument, tensors
from runner.timing.correctness import compare
from runner.timing.procedure import take, verdict

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
        device = options.device or _device(functions, args, inputs)
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
    reference = _Reference(options, args) if options.reference else None  # before a function may change its arguments
    runs = [_bound(function, args, options) for function in functions]
    seconds = [_first_calls(run, inputs, kind) for run in runs]
    inputs.forget_unchanged()
    settings, work = options.settings, _work(options, inputs)
    if kind == "cuda":
        from runner.timing import calibration, measured_peak

        calibration.renew_if_moved()
        peak = work is not None and (options.measure_peak or measured_peak.kept_peak() is not None)
        settings = replace(settings, measured_peak=peak, max_s=options.gpu_s or settings.max_s)
    reset = inputs.restore if inputs.changed else None
    found, calls = [], []
    for run, function, one_s in zip(runs, functions, seconds, strict=True):
        inputs.restore()  # the samples of the previous one end with a call
        checked, judge = reference.check(run, inputs) if reference else ({}, None)
        wrong = str(checked.pop("reason", ""))
        plain = not (options.grad or reset or wrong) and one_s < SLOW_S
        if reference and plain and _returns_cached_result(function, args):
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
    module = import_module(f"runner.timing.{kind}")
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


# --- arguments ---


class Inputs:
    """The tensors among arguments, and copies of those that calls change."""

    def __init__(self, args: object) -> None:
        self.tensors = list({id(one): one for one in leaves(args) if isinstance(one, Tensor)}.values())
        self.changed: list[tuple[Tensor, Tensor]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        with suppress(torch.OutOfMemoryError):  # then changes are not noticed
            for one in self.tensors:
                if type(one) in PLAIN and one.layout is torch.strided and not one.is_quantized:
                    self._before.append((one, one.detach().clone()))

    @property
    def movable(self) -> tuple[Tensor, ...]:
        """Those that may be moved in memory while they are timed: no other tensor shares their memory."""
        storages = [one.untyped_storage().data_ptr() for one in self.tensors if type(one) in PLAIN]
        return tuple(
            one
            for one in self.tensors
            if type(one) in PLAIN
            and not one.is_inference()
            and one.is_leaf
            and storages.count(one.untyped_storage().data_ptr()) == 1
        )

    def note_changes(self) -> None:
        """Find the tensors that a call has changed."""
        known = {id(one) for one, _ in self.changed}
        self.changed += [(now, was) for now, was in self._before if id(now) not in known and not same_bits(now, was)]

    def forget_unchanged(self) -> None:
        """Free the copies of tensors that no function has changed."""
        self._before = []

    def restore(self) -> None:
        """Undo the changes, in place."""
        if self.changed:
            with torch.no_grad():
                for now, was in self.changed:
                    now.copy_(was)


PLAIN = (Tensor, torch.nn.Parameter)  # other classes may have no memory of their own


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and type have the same bits; NaN equals NaN."""
    return equal(*(each.detach().reshape(-1).view(torch.uint8) for each in (one, other)))


def leaves(nested: object) -> Iterator[object]:
    """Yield what lists, tuples and mappings hold."""
    if isinstance(nested, Mapping):
        nested = list(nested.values())
    if isinstance(nested, list | tuple):
        yield from chain.from_iterable(map(leaves, nested))
    else:
        yield nested


def _mapped(change: Callable[[Tensor], Tensor], nested: Any) -> Any:
    """Return lists, tuples and mappings with each tensor changed; a tuple with names stays as it is."""
    if isinstance(nested, Tensor):
        return change(nested)
    if type(nested) in (list, tuple):
        return type(nested)(_mapped(change, one) for one in nested)
    if type(nested) is dict:
        return {name: _mapped(change, one) for name, one in nested.items()}
    return nested


def _device(functions: Sequence[Function], args: Sequence[Any], inputs: Inputs) -> torch.device:
    """Return the device of a GPU tensor that the functions take, name or return; else the CPU."""
    found = list(chain(inputs.tensors, *map(_referenced_tensors, functions)))
    on_gpu = next((one.device for one in found if one.is_cuda), None)
    if on_gpu or not torch.cuda.is_available():
        return on_gpu or torch.device("cpu")
    try:
        outputs = tensors(functions[0](*args))
    finally:
        inputs.note_changes()
        inputs.restore()
    unknown = not found and not outputs and torch.cuda.is_initialized()
    current = torch.device("cuda", torch.cuda.current_device()) if unknown else torch.device("cpu")
    return next((one.device for one in outputs if one.is_cuda), current)


def _referenced_tensors(function: Any) -> Iterator[Tensor]:
    """Yield tensors that a function holds: of a partial, a module, a closure, defaults, and globals that it names."""
    while isinstance(function, partial):
        yield from _tensors_of((function.args, function.keywords))
        function = function.func
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield from chain(owner.parameters(), owner.buffers())
    if inspect.isfunction(function := inspect.unwrap(getattr(function, "__func__", function))):
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        names = [function.__globals__.get(name) for name in function.__code__.co_names]
        yield from _tensors_of((cells, names, function.__defaults__, function.__kwdefaults__))


def _tensors_of(nested: object) -> Iterator[Tensor]:
    for one in leaves(nested):
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, torch.nn.Module):
            yield from one.parameters()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# --- calls ---


def _bound(function: Function, args: Sequence[Any], options: Options) -> Callable[[], Any]:
    if options.grad:
        return _Backward(function, args)
    return partial(function, *args) if args else function


class _Backward:
    """Forward and backward of a function. Returns its outputs and the gradients of its arguments.

    Gradients of other tensors, such as a module's parameters, are computed too. No ``.grad`` is changed.

    Raises:
        ValueError: no output depends on a tensor that requires a gradient.

    """

    def __init__(self, function: Function, args: Sequence[Any]) -> None:
        given = [one for one in leaves(args) if isinstance(one, Tensor)]
        if not any(one.requires_grad for one in given):

            def leaf(tensor: Tensor) -> Tensor:
                return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor

            args = _mapped(leaf, tuple(args))
            given = [one for one in leaves(args) if isinstance(one, Tensor)]
        self._function, self._args = function, args
        self._wanted = [one for one in given if one.requires_grad]
        self._others: list[Tensor] | None = None  # found in the first call
        self._upstream: list[Tensor] = []

    def __call__(self) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            result = self._function(*self._args)
            outputs = [one for one in leaves(result) if isinstance(one, Tensor) and one.requires_grad]
            if self._others is None:
                if not outputs:
                    raise ValueError("grad=True: no output depends on a tensor that requires a gradient")
                mine = {id(one) for one in self._wanted}
                self._others = [one for one in _leaves_of(outputs) if id(one) not in mine]
                self._upstream = [_upstream(one) for one in outputs]
            wanted = [*self._wanted, *self._others]
            gradients = torch.autograd.grad(outputs, wanted, self._upstream, allow_unused=True)
        own = gradients[: len(self._wanted)]
        return (*(one.detach() for one in outputs), *(one for one in own if one is not None))


def _leaves_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves of the autograd graph of ``outputs``."""
    found, seen, waiting = [], set(), [one.grad_fn for one in outputs]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _upstream(output: Tensor) -> Tensor:
    """Return a gradient of ``output``: sixteenths between -1 and 1, which every type holds exactly."""
    generator = torch.Generator(output.device).manual_seed(0)
    drawn = torch.randint(-16, 17, output.shape, generator=generator, device=output.device)
    return drawn.to(output.dtype) / 16


# --- the check ---


RELATIVE, OF_RMS = {2: 8, 4: 32}, {2: 8, 4: 512}  # unit roundoffs allowed, by the bytes of a number: narrow types are
# computed in float32 and rounded once or a few times; a sum of thousands in float32 has hundreds of roundoffs


class _Reference:
    """What a function should return, in float64."""

    def __init__(self, options: Options, args: Sequence[Any]) -> None:
        assert options.reference
        self._atol, self._rtol = options.atol, options.rtol
        self._args = _mapped(_as_float64, tuple(args))
        run = _Backward(options.reference, self._args) if options.grad else partial(options.reference, *self._args)
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


def _returns_cached_result(function: Function, args: Sequence[Any]) -> bool:
    """Return whether ``function`` gives the same bits for other numbers: half of each, in reverse order.

    They have the signs and ranges of the given ones, so that a function that is picky about them can be called.
    """

    def other(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            return tensor.clone()
        return (tensor.detach() / 2).reshape(-1).flip(0).reshape(tensor.shape).requires_grad_(tensor.requires_grad)

    given = [one for one in leaves(args) if isinstance(one, Tensor) and one.is_floating_point()]
    try:
        others = _mapped(other, tuple(args))
        before = [one.clone() for one in tensors(function(*args))]
        after = tensors(function(*others))
        alike = len(before) == len(after) and all(map(same_bits, before, after))
        varies = any(one.numel() and bool((one != one.reshape(-1)[0]).any()) for one in before)
    except (RuntimeError, ValueError):  # it takes no other numbers
        return False
    return bool(given) and alike and varies


# --- for Triton ---


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
    named = [*_referenced_tensors(fn)] if torch.cuda.is_available() else [torch.empty(0)]
    on_gpu = not named or any(one.is_cuda for one in named)
    kind = "cuda" if on_gpu else "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    settings = replace(DEFAULTS, warmup_s=warmup / 1e3, max_s=rep / 1e3)
    with preserved_state(), on(device):
        fn()
        instrument = _instrument(Call(fn, partial(_drop, grad_to_none) if grad_to_none else None), settings, kind)
        times = [max(0.0, us / 1e3) for us in take(instrument, settings).samples_us]
    if quantiles is None:
        return modes[return_mode](times)
    found = [_quantile(sorted(times), share) for share in quantiles]
    return found[0] if len(found) == 1 else found


def _instrument(call: Call, settings: TimingSettings, kind: str) -> Instrument:
    if kind == "cpu":
        from runner.timing.cpu import PerfCounter

        return PerfCounter(call.run, call.reset)
    from runner.timing import calibration, cuda, instruments

    torch.cuda.synchronize()
    cuda.warm_up(False)
    calibration.renew_if_moved()
    return instruments.choose(call, settings)[0]


def _drop(tensors: Sequence[Tensor]) -> None:
    for one in tensors:
        one.grad = None


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation, as torch.quantile does."""
    place = share * (len(ordered) - 1)
    low, rest = int(place), place - int(place)
    return ordered[low] + rest * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
