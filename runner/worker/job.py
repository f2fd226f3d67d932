"""Run a case: inputs → build → check against float64 → measure → row."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch

from .. import implementations
from ..device.triton_driver import driver_without_gpu
from ..kernels.unsupported import Unsupported
from ..measure import CannotMeasure, MeasureContext
from ..records.case import CaseRecord, Scalar
from ..records.columns import TIMES
from ..records.debugging import useless_debug
from ..records.plain_text import printable
from ..records.redaction import clip
from ..records.row import NOT_RUN, Phase, Row
from ..subject.faults import Fault, classify, without_gpu
from ..subject.interpreter import interpreting, untimed
from ..subject.operation import OWN_WEIGHTS
from ..subject.path import checked, first_calls, synchronize
from ..timing import clock as time
from ..timing import ranks
from ..timing.arguments import Inputs
from ..timing.call import Call
from ..timing.verdict import UNTRUE
from .problem import ProblemState, algorithms, device_name
from .sanitizer import run_sanitizer

SHARE_PRECOMPILE = 0.1  # share of the GPU's memory for a process that compiles while another case runs
# The column of a phase; build has build_s and first_call_s.
TIMED_PHASES = {"inputs": "inputs_s", "reference": "check_s", "check": "check_s", "measure": "measure_s"}


@dataclass
class Job:
    """A case on its way to a row. It holds the results so far, so that a failed case has a row too."""

    case: CaseRecord
    problem: ProblemState
    on_phase: Callable[[Phase], None]
    folder: Path | None = None  # for files of its measurements; None: they keep none
    program: str = ""  # module that runs a case again under a tool
    phase: Phase = "start"
    metrics: dict[str, Scalar] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    fallback: str = ""  # reason if the implementation did not run as requested
    wrong: str = ""  # error of the outputs
    untimed: str = ""  # reason if a time would be meaningless
    files: list[str] = field(default_factory=list)
    counted: float = 0.0  # the clock at the last call of ``count``

    def enter(self, phase: Phase) -> None:
        """Begin the next phase."""
        self.count()
        self.phase = phase
        self.on_phase(phase)

    def count(self) -> None:
        """Add the time since the last call to the column of the phase. The last call is when the case has run."""
        now = time.perf_counter()
        if column := TIMED_PHASES.get(self.phase):
            self.metrics[column] = float(self.metrics.get(column) or 0.0) + now - self.counted
        self.counted = now

    def run(self) -> None:
        """Run all phases in order. Raises exceptions of the implementation."""
        deterministic = algorithms(deterministic=self.case.settings.deterministic_algorithms)
        with debugging(self.case.settings.debug, self.problem.device), deterministic:
            if self.case.settings.debug == "sanitizer":
                self._sanitize()
            try:
                call = self.ready()
            except Exception as error:
                is_refusal = isinstance(error, Unsupported) or self.problem.device == "cpu"
                if refusal := without_gpu(error) if is_refusal else None:
                    self._measure_without_running(refusal)
                    raise refusal from None
                raise
            if self.untimed and not self.wrong and not self.case.settings.debug:
                raise Unsupported(self.untimed)
            if self.untimed or (self.wrong and not self.case.settings.time_wrong):
                return
            self._measure(call)
            call.restore()
            if not self.case.settings.debug:
                self.problem.keep_call(self.case, replace(call, judge_anew=None), self.metrics)

    def context(self, name: str) -> MeasureContext:
        """Return the context of the measurement ``name``, with the figures so far."""
        place = self.folder and self.folder / name
        return MeasureContext(self.problem.device, self.case, place, dict(self.metrics), self.program)

    def _sanitize(self) -> None:
        """Run the case under compute-sanitizer first, since the implementation may spoil this process."""
        self.enter("measure")
        context = self.context("sanitizer")
        try:
            self.metrics |= run_sanitizer(context)
        finally:
            self._keep_files(context)

    def ready(self) -> Call:
        """Run all phases before ``measure``, set ``wrong``, and return the call."""
        self.enter("inputs")
        case, problem, device = self.case, self.problem, self.problem.device
        workload, inputs = problem.workload, problem.inputs()
        self.enter("reference")
        expected = problem.expected()  # before the implementation, which may change the inputs or torch, is loaded
        work = workload.work()
        self.metrics.update(flops=work.flops, bytes_min=work.bytes_min, threads=torch.get_num_threads())
        if work.algo_bytes:
            self.metrics.update(algo_bytes=work.algo_bytes, bus_factor=work.bus_factor)

        self.enter("build")
        implementation = implementations.build(case.impl)
        started = time.perf_counter()
        with interpreting():  # a script runs its kernels
            function = implementation.load(case.workload.name)
        self.metrics["build_s"] = time.perf_counter() - started

        with interpreting() as interpreters, implementation.first_calls(case.workload.name, device) as report:
            call = replace(workload.call(function, inputs), work=work)
            call = implementation.wrap_call(call, device)
            self.metrics.update(call.columns)
            given = Inputs(call.arguments or inputs)
            given.copy()
            given.others = problem.other_integers(given.integers)
            call, columns = first_calls(call, given, device, peak=True)
        self.metrics.update(columns | report.metrics)
        self.fallback = ranks.current.first(report.fallback or str(columns.get("recompile_limit", "")))

        if not implementation.CHECKED:
            del self.metrics["flops"]  # a copy computes nothing
            return replace(call, inputs=())

        self.enter("check")
        with interpreting():
            call, columns, self.wrong = checked(call, expected, problem.expected_now, given)
        if self.wrong and self.metrics.get("weights") == OWN_WEIGHTS:
            self.wrong += "; its weights are its own: names or shapes in its state_dict are not the reference's"
        self.metrics.update(columns)
        self.untimed = untimed(interpreters, checked=True)
        return replace(call, judge=None, judge_anew=None, inputs=()) if problem.low_memory else call

    def compile_only(self) -> dict[str, Scalar]:
        """Load the implementation and call it once, with little memory and on one core. Return the time in s."""
        device = self.problem.device
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(SHARE_PRECOMPILE)
        if inductor := sys.modules.get("torch._inductor.config"):
            inductor.compile_threads = 1  # type: ignore[attr-defined]  # the other cores compile other cases
        call = self._plain_call()
        started = time.perf_counter()
        # The setting is part of the key of Inductor's cache.
        with algorithms(deterministic=self.case.settings.deterministic_algorithms):
            call.run()
            synchronize(device)
        return {"precompile_s": time.perf_counter() - started}

    def script_call(self) -> Call:
        """Return the call as a short script makes it, without earlier calls and without a check."""
        self.problem.inputs()
        synchronize(self.problem.device)
        return implementations.build(self.case.impl).wrap_call(self._plain_call(), self.problem.device)

    def _plain_call(self) -> Call:
        """Return the call of the implementation, without its wrapper."""
        function = implementations.build(self.case.impl).load(self.case.workload.name)
        return self.problem.workload.call(function, self.problem.inputs())

    def _measure(self, call: Call) -> None:
        """Run all measurements. Once there is a time, an error costs only its own figures. Raises Unsupported."""
        not_measured: dict[str, str] = {}
        for choice, measure in zip(self.case.measures, self.problem.measures, strict=True):
            self.enter("measure")  # each measurement has the whole time limit
            context = self.context(choice.name)
            try:
                self._add_figures(measure.measure(call, context))
                synchronize(context.device)
            except CannotMeasure as error:
                not_measured[choice.name] = str(error)
            except Exception as error:
                fault = classify(error, "measure")
                if fault.spoiled or not self.metrics.keys() & TIMES or ranks.current.count > 1:  # the others wait
                    raise
                not_measured[choice.name] = fault.reason  # the time of an earlier measurement stays valid
            if reason := ranks.current.first(not_measured.get(choice.name, "")):
                not_measured[choice.name] = reason
            self._keep_files(context)
        if not_measured:
            self.metrics["not_measured"] = clip("; ".join(f"{name}: {reason}" for name, reason in not_measured.items()))
            if len(not_measured) == len(self.case.measures):
                raise Unsupported(str(self.metrics["not_measured"]))

    def _measure_without_running(self, refusal: Unsupported) -> None:
        """Measure a call that cannot run here by measurements that only compile. Raises Unsupported after the first."""
        for choice, measure in zip(self.case.measures, self.problem.measures, strict=True):
            compile_only = getattr(measure, "compile_only", None)
            if compile_only is None:
                continue
            context = self.context(choice.name)
            try:
                figures = compile_only(self._plain_call, context)
            except CannotMeasure as error:
                raise Unsupported(f"{refusal}; {choice.name}: {error}") from error
            if figures is None:
                continue
            self._add_figures(figures)
            self._keep_files(context)
            why, _, _ = str(refusal).partition("; ")  # the advice after it names other ways, or this one
            raise Unsupported(f"{NOT_RUN}{choice.name}: {why}") from refusal

    def _add_figures(self, figures: Mapping[str, Scalar | Sequence[float]]) -> None:
        """Add the figures and series of a measurement."""
        for name, value in figures.items():
            if isinstance(value, str | int | float | None):
                self.metrics[name] = value
            else:
                self.series[name] = list(value)
        if self.metrics.get("verdict") == "wrong" and not self.wrong:
            self.wrong = str(self.metrics["verdict_reason"])
            self.metrics["correct"] = False

    def _keep_files(self, context: MeasureContext) -> None:
        files = sorted(context.place.rglob("*")) if context.place else []
        self.files += chain(*ranks.current.gather([str(path) for path in files if path.is_file()], "files"))

    def row(self, fault: Fault | None, detail: str = "") -> Row:
        """Return the row of the case. ``fault`` is its failure, if any."""
        if fault is not None and fault.status == "wrong":
            self.wrong, self.metrics["correct"] = fault.reason, False
        status, reason = ("wrong", self.wrong) if self.wrong else ("ok", "")
        if fault is not None:
            status, reason = fault.status, "the reference fails: " * (self.phase == "reference") + fault.reason
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
            device=device_name(self.case.settings.device),
            phase=self.phase,
            metrics={name: printable(value) if isinstance(value, str) else value for name, value in metrics.items()},
            series=series,
            files=tuple(self.files),
            detail=detail,
        )

    def _verdict(self) -> dict[str, Scalar]:
        """Return the gravest doubt about the figures, or "ok"."""
        verdict, reason = self.metrics.get("verdict", "ok"), self.metrics.get("verdict_reason", "")
        if self.wrong:
            verdict, reason = "wrong", self.wrong
        elif self.case.settings.debug:
            verdict = "debug"
            reason = self.untimed or f"debug={self.case.settings.debug} is a debugging mode; timings are not valid"
        elif self.fallback and verdict not in UNTRUE:
            verdict, reason = "fallback", self.fallback
        return {"verdict": verdict, "verdict_reason": reason}


@contextmanager
def debugging(mode: str | None, device: str) -> Iterator[None]:
    """Run a case on ``device`` ("cpu" or "cuda") in a debugging mode. Raises Unsupported if the mode is useless there.

    Under ``interpret``, Triton's driver is the CPU's. Under ``anomaly``, autograd's warnings become notes of an error:
    they name the line of the forward.
    """
    if reason := useless_debug(mode, device):
        raise Unsupported(f"debug={reason}")
    if mode != "anomaly":
        with driver_without_gpu("cpu") if mode == "interpret" else nullcontext():
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
