"""One Case → one Row: inputs → build → check against float64 → measure."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, equal

import runner.implementations as implementations
from runner.experiment.case import CaseRecord, Scalar, useless_debug
from runner.experiment.columns import TIMES
from runner.experiment.results import Phase, Row, clip, printable
from runner.kernels.unsupported import Unsupported
from runner.measure import CannotMeasure, MeasureContext
from runner.timing import Call
from runner.timing import clock as time
from runner.timing.call import peak_bytes
from runner.timing.correctness import compare, repeats
from runner.timing.procedure import UNTRUE
from runner.worker.check import Fault, classify
from runner.worker.problem import Problem, algorithms, device_name

SHARE_PRECOMPILE = 0.1  # of the GPU's memory, for a process that compiles while another case runs
TIMED_PHASES = ("inputs", "check", "measure")  # each has a column <phase>_s; build has build_s and first_call_s
CALLS_BEFORE_CHECK = 3  # torch.compile with CUDA graphs warms up, records, and only then replays: check a replay


@dataclass
class Job:
    """A case on its way to a row. It holds what is known so far, so that a failed case has a row too."""

    case: CaseRecord
    problem: Problem
    on_phase: Callable[[Phase], None]
    folder: Path | None = None  # for files of its measurements; None: they keep none
    phase: Phase = "start"
    metrics: dict[str, Scalar] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    fallback: str = ""  # why the implementation did not run as asked
    wrong: str = ""  # why the outputs are wrong
    untimed: str = ""  # why a time would mean nothing
    files: list[Path] = field(default_factory=list)
    counted: float = 0.0  # the clock at the last call of ``_count``

    def enter(self, phase: Phase) -> None:
        """Begin the next phase."""
        self._count()
        self.phase = phase
        self.on_phase(phase)

    def _count(self) -> None:
        """Add the time since the last call to the column of the phase."""
        now = time.perf_counter()
        if self.phase in TIMED_PHASES:
            column = f"{self.phase}_s"
            self.metrics[column] = float(self.metrics.get(column) or 0.0) + now - self.counted
        self.counted = now

    def run(self) -> None:
        """Run all phases in order. Raises what the implementation raises."""
        deterministic = algorithms(deterministic=self.case.deterministic_algorithms)
        with debugging(self.case.debug, self.problem.device), deterministic:
            if self.case.debug == "sanitizer":
                self._sanitize()
            try:
                call = self.ready()
            except Unsupported as refusal:
                self._measure_without_running(refusal)
                raise
            if self.untimed and not self.wrong and not self.case.debug:
                raise Unsupported(self.untimed)
            if self.untimed or (self.wrong and not self.case.time_wrong):
                return
            self._measure(call)
            call.restore()
            if not self.case.debug:
                self.problem.keep_call(self.case, replace(call, judge=None), self.metrics)

    def context(self, name: str) -> MeasureContext:
        """Return the context of the measurement ``name``, with the figures so far."""
        return MeasureContext(self.problem.device, self.case, self.folder and self.folder / name, dict(self.metrics))

    def _sanitize(self) -> None:
        """Run the case under compute-sanitizer first, since the implementation may spoil this process."""
        self.enter("measure")
        from runner.worker.again import look  # which imports this module

        context = self.context("sanitizer")
        try:
            self.metrics |= look(context)
        finally:
            self._keep_files(context)

    def ready(self) -> Call:
        """Run all phases before ``measure`` and return the call. ``wrong`` says what is wrong with its outputs."""
        self.enter("inputs")
        case, problem, device = self.case, self.problem, self.problem.device
        workload, inputs = problem.workload, problem.inputs()
        work = workload.work()
        self.metrics.update(flops=work.flops, bytes_min=work.bytes_min, threads=torch.get_num_threads())

        self.enter("check")
        expected = problem.expected()  # before the implementation is loaded, and may change the inputs or torch

        self.enter("build")
        implementation = implementations.build(case.impl)
        started = time.perf_counter()
        function = implementation.load(case.workload.name)
        self.metrics["build_s"] = time.perf_counter() - started

        with implementation.first_calls(case.workload.name, device) as report:
            call = replace(workload.call(function, inputs), work=work)
            call = implementation.wrap_call(call, device)
            call = self._first_calls(call, inputs, device)
        self.metrics.update(report.metrics)
        self.fallback = report.fallback

        if not implementation.CHECKED:
            del self.metrics["flops"]  # none are done
            return call

        self.enter("check")
        call.restore()
        outputs = call.run()
        dtype = getattr(torch, workload.output_dtype)
        result = compare(outputs, expected, dtype)
        self.metrics.update(result.columns())
        if result.compared:
            self.metrics["bitwise_repeatable"] = repeats(call, outputs)
        self.wrong = result.reason
        self.untimed = implementation.untimed(case.workload.name)
        if problem.low_memory:
            return call
        judge = None if self.wrong else lambda outputs: compare(outputs, expected, dtype).reason
        return replace(call, judge=judge, inputs=inputs)

    def compile_only(self) -> dict[str, Scalar]:
        """Load the implementation and call it once, with little memory and on one core. Return the time in s."""
        device = self.problem.device
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(SHARE_PRECOMPILE)
        if inductor := sys.modules.get("torch._inductor.config"):
            inductor.compile_threads = 1  # type: ignore[attr-defined]  # the other cores compile other cases
        call = self._plain_call()
        started = time.perf_counter()
        with algorithms(deterministic=self.case.deterministic_algorithms):  # Inductor's cache tells them apart
            call.run()
            _synchronize(device)
        return {"precompile_s": time.perf_counter() - started}

    def script_call(self) -> Call:
        """Return the call as a short script makes it: nothing was called before, and nothing is checked."""
        implementation, workload = implementations.build(self.case.impl), self.problem.workload
        inputs = self.problem.inputs()
        _synchronize(self.problem.device)
        call = workload.call(implementation.load(self.case.workload.name), inputs)
        return implementation.wrap_call(call, self.problem.device)

    def _plain_call(self) -> Call:
        """Return the call of the implementation, without its wrapper."""
        function = implementations.build(self.case.impl).load(self.case.workload.name)
        return self.problem.workload.call(function, self.problem.inputs())

    def _first_calls(self, call: Call, inputs: Sequence[Tensor], device: str) -> Call:
        """Call until nothing is compiled any more. Return the call, with a reset of the inputs if it changes them."""
        pristine = [tensor.clone() for tensor in inputs]
        _synchronize(device)
        started = time.perf_counter()
        if device == "cuda":
            self.metrics["first_call_peak_bytes"] = peak_bytes(call.run, device)
        else:
            call.run()
        self.metrics["first_call_s"] = time.perf_counter() - started
        changed = [(now, was) for now, was in zip(inputs, pristine, strict=True) if not equal(now, was)]
        self.metrics["mutates_inputs"] = bool(changed)
        if changed:
            call = replace(call, reset=partial(_restore, call, changed))
        for _ in range(CALLS_BEFORE_CHECK - 1):
            call.restore()
            call.run()
        _synchronize(device)
        return call

    def _measure(self, call: Call) -> None:
        """Run all measurements. Once there is a time, an error costs its own figures only. Raises Unsupported."""
        not_measured: dict[str, str] = {}
        for choice, measure in zip(self.case.measures, self.problem.measures, strict=True):
            self.enter("measure")  # each measurement has the whole time limit
            context = self.context(choice.name)
            try:
                self._add_figures(measure.measure(call, context))
                _synchronize(context.device)
            except CannotMeasure as error:
                not_measured[choice.name] = str(error)
            except Exception as error:
                fault = classify(error, "measure")
                if fault.spoiled or not self.metrics.keys() & TIMES:
                    raise
                not_measured[choice.name] = fault.reason  # the time of an earlier measurement stays valid
            self._keep_files(context)
        if not_measured:
            self.metrics["not_measured"] = clip("; ".join(f"{name}: {why}" for name, why in not_measured.items()))
            if len(not_measured) == len(self.case.measures):
                raise Unsupported(str(self.metrics["not_measured"]))

    def _measure_without_running(self, refusal: Unsupported) -> None:
        """Let measurements that only compile report on a call that cannot run here. Raises Unsupported if one does."""
        for choice, measure in zip(self.case.measures, self.problem.measures, strict=True):
            compile_only = getattr(measure, "compile_only", None)
            if compile_only is None:
                continue
            context = self.context(choice.name)
            try:
                found = compile_only(self._plain_call().run, context)
            except CannotMeasure as error:
                raise Unsupported(f"{refusal}; {choice.name}: {error}") from error
            if found is None:
                continue
            self._add_figures(found)
            self._keep_files(context)
            raise Unsupported(f"not run, and seen by {choice.name} alone: {refusal}") from refusal

    def _add_figures(self, figures: Mapping[str, Scalar | Sequence[float]]) -> None:
        """Add what a measurement returned: figures, and series of figures."""
        for name, value in figures.items():
            if isinstance(value, str | int | float | None):
                self.metrics[name] = value
            else:
                self.series[name] = list(value)
        if self.metrics.get("verdict") == "wrong" and not self.wrong:
            self.wrong = str(self.metrics["verdict_reason"])
            self.metrics["correct"] = False

    def _keep_files(self, context: MeasureContext) -> None:
        if context.place and context.place.is_dir():
            self.files += sorted(path for path in context.place.rglob("*") if path.is_file())

    def row(self, fault: Fault | None, detail: str = "") -> Row:
        """Return the row of the case, which failed with ``fault`` unless that is None."""
        self._count()
        status, reason = ("wrong", self.wrong) if self.wrong else ("ok", "")
        if fault is not None:
            status, reason = fault.status, fault.reason
        if status in ("ok", "wrong"):
            metrics = self.metrics | self._verdict()
            series = self.series
        else:  # figures of a case that failed after it was timed would look like results
            without = {*TIMES, "correct"} if self.metrics.get("correct") is False else set(TIMES)
            metrics, series = {name: value for name, value in self.metrics.items() if name not in without}, {}
        return Row(
            case=self.case,
            status=status,  # type: ignore[arg-type]
            reason=printable(reason),
            device=device_name(self.case.device),
            phase=self.phase,
            metrics={name: printable(one) if isinstance(one, str) else one for name, one in metrics.items()},
            series=series,
            files=tuple(map(str, self.files)),
            detail=detail,
        )

    def _verdict(self) -> dict[str, Scalar]:
        """Return the gravest doubt about the figures, or "ok"."""
        verdict, reason = self.metrics.get("verdict", "ok"), self.metrics.get("verdict_reason", "")
        if self.wrong:
            verdict, reason = "wrong", self.wrong
        elif self.case.debug:
            verdict = "debug"
            reason = self.untimed or f"debug={self.case.debug} is a debugging mode; timings are not valid"
        elif self.fallback and verdict not in UNTRUE:
            verdict, reason = "fallback", self.fallback
        return {"verdict": verdict, "verdict_reason": reason}


def _restore(call: Call, changed: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Undo what ``call`` does to its parameters and to inputs: pairs of a tensor and its copy from before."""
    call.restore()
    for now, was in changed:
        now.copy_(was)


def _synchronize(device: str) -> None:
    """Wait for the GPU, and so raise its errors, which come late."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def debugging(mode: str | None, device: str) -> Iterator[None]:
    """Run a case on ``device`` ("cpu" or "cuda") in a debugging mode. Raises Unsupported if the mode is useless there.

    Under ``anomaly``, an error carries autograd's warnings as notes: they say where the forward called the operation.
    """
    if why := useless_debug(mode, device):
        raise Unsupported(f"debug={why}")
    if mode != "anomaly":
        yield
        return
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except Exception as error:
            for warning in caught:
                error.add_note(str(warning.message))
            raise
