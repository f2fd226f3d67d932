"""One Case → one Row: inputs → build → check against float64 → measure."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from runner import implementations
from runner.experiment.case import DEBUG_VERDICT, CaseRecord, Scalar, useless_debug
from runner.experiment.columns import TIMES
from runner.experiment.results import Phase, Row, kept
from runner.kernels.unsupported import Unsupported
from runner.measure import CannotMeasure, MeasureContext
from runner.models.workload import Expected
from runner.timing import Call
from runner.timing.call import peak_bytes
from runner.timing.procedure import UNTRUE
from runner.worker.check import Fault, classify, compare, repeats
from runner.worker.problem import Problem, device_name

SHARE_PRECOMPILE = 0.1  # of the GPU's memory, for a process that compiles while another case runs
SPENT = ("inputs_s", "check_s", "measure_s")  # columns of phases that are not told in parts
CALLS_BEFORE_CHECK = 3  # torch.compile with CUDA graphs warms up, records, and only then replays: check a replay


@dataclass
class Job:
    """A case on its way to a row; keeps what is known so far, whatever happens next."""

    case: CaseRecord
    problem: Problem
    on_phase: Callable[[Phase], None]
    place: Path | None = None  # where its measurements may keep files
    phase: Phase = "start"
    counted: float = 0.0  # by the clock: the seconds of phases until then
    metrics: dict[str, Scalar] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    fallback: str = ""
    wrong: str = ""
    untimed: str = ""
    files: list[Path] = field(default_factory=list)

    def enter(self, phase: Phase) -> None:
        """The next phase begins."""
        self._count()
        self.phase = phase
        self.on_phase(phase)

    def _count(self) -> None:
        """What the phase has taken so far, since it was last counted."""
        now = time.perf_counter()
        if (column := f"{self.phase}_s") in SPENT:
            self.metrics[column] = float(self.metrics.get(column) or 0.0) + now - self.counted
        self.counted = now

    def run(self) -> None:
        """All phases in order. Raises whatever the implementation raises."""
        with aided(self.case.debug, self.problem.device):
            if self.case.debug == "sanitizer":
                self._sanitize()
            try:
                call = self.ready()
            except Unsupported as refusal:
                foresee(self, refusal)
                raise
            if self.wrong and (self.untimed or not self.case.time_wrong):
                return
            if self.untimed and self.case.debug:
                return  # checked, which is all that was wanted
            if self.untimed:
                raise Unsupported(self.untimed)
            observe(self, call)
            call.restore()
            if not self.case.debug:
                self.problem.keep(self.case, replace(call, judge=None), self.metrics)

    def context(self, name: str) -> MeasureContext:
        """Return the context of the measurement ``name``, with the figures so far."""
        return MeasureContext(self.problem.device, self.case, self.place and self.place / name, dict(self.metrics))

    def keep(self, context: MeasureContext) -> None:
        """The files of a measurement are the row's."""
        if context.place and context.place.is_dir():
            self.files += sorted(path for path in context.place.rglob("*") if path.is_file())

    def _sanitize(self) -> None:
        """Before anything of the implementation's has run here, and may have spoiled this process."""
        self.enter("measure")
        from runner.worker.again import look  # which builds a Job itself

        context = self.context("sanitizer")
        try:
            self.metrics |= look(context)
        finally:
            self.keep(context)

    def ready(self) -> Call:
        """Everything up to the check: the call, built and found right, or wrong as ``wrong`` says.

        Raises whatever the implementation raises.
        """
        self.enter("inputs")
        case, problem, device = self.case, self.problem, self.problem.device
        workload, inputs = problem.workload, problem.inputs()
        self.metrics.update(flops=workload.flops(), bytes_min=workload.bytes_min(), threads=torch.get_num_threads())

        self.enter("build")
        implementation = implementations.build(case.impl)
        started = time.perf_counter()
        function = implementation.load(case.workload.name)
        self.metrics["build_s"] = time.perf_counter() - started

        self.enter("check")
        expected = problem.expected()  # before the implementation sees, and may change, the inputs

        self.enter("build")
        with implementation.first_calls(case.workload.name, device) as report:
            call = implementation.wrap_call(workload.call(function, inputs), device)
            call = self._first_calls(call, inputs, device)
        self.metrics.update(report.metrics)
        self.fallback = report.fallback

        self.enter("check")
        call.restore()
        outputs = call.run()
        comparison = compare(outputs, expected, getattr(torch, workload.output_dtype))
        self.metrics.update(comparison.columns(), bitwise_repeatable=repeats(call, outputs))
        self.wrong = comparison.reason
        del outputs
        self.untimed = implementation.untimed(case.workload.name)
        judge = None if problem.low_memory or self.wrong else partial(self._judge, expected)
        call = replace(call, work=workload.work(), judge=judge, inputs=() if problem.low_memory else inputs)
        del expected
        problem.release_expected()
        return call

    def compile_only(self) -> dict[str, Scalar]:
        """Load the implementation and call it once, in as little memory and on as few cores as that takes."""
        case, problem, device = self.case, self.problem, self.problem.device
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(SHARE_PRECOMPILE)
        if inductor := sys.modules.get("torch._inductor.config"):
            inductor.compile_threads = 1  # type: ignore[attr-defined]  # the other cores have cases of their own
        function = implementations.build(case.impl).load(case.workload.name)
        started = time.perf_counter()
        problem.workload.call(function, problem.inputs()).run()
        _wait(device)
        return {"precompile_s": time.perf_counter() - started}

    def _judge(self, expected: Sequence[Expected], outputs: Sequence[object]) -> str:
        """What is wrong with ``outputs`` of a timed call; empty if nothing."""
        return compare(outputs, expected, getattr(torch, self.problem.workload.output_dtype)).reason

    def take(self, figures: Mapping[str, Scalar | Sequence[float]]) -> None:
        """Add what a measurement returned: figures, and series of figures."""
        for name, value in figures.items():
            if isinstance(value, str | int | float | None):
                self.metrics[name] = value
            else:
                self.series[name] = list(value)
        if self.metrics.get("verdict") == "wrong" and not self.wrong:
            self.wrong = str(self.metrics["verdict_reason"])
            self.metrics["correct"] = False

    def _first_calls(self, call: Call, inputs: Sequence[Tensor], device: str) -> Call:
        """Calls until nothing is compiled any more. The call, with a reset of the inputs if it changes them."""
        pristine = [tensor.clone() for tensor in inputs]
        _wait(device)
        started = time.perf_counter()
        if device == "cuda":
            self.metrics["first_call_peak_bytes"] = peak_bytes(call.run, device)
        else:
            call.run()
        self.metrics["first_call_s"] = time.perf_counter() - started
        changed = [(now, was) for now, was in zip(inputs, pristine, strict=True) if not torch.equal(now, was)]
        self.metrics["mutates_inputs"] = bool(changed)
        if changed:
            call = Call(call.run, partial(_put_back, call, changed))
        for _ in range(CALLS_BEFORE_CHECK - 1):
            call.restore()
            call.run()
        _wait(device)
        return call

    def row(self, fault: Fault | None, detail: str = "") -> Row:
        """What has become of the case."""
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
            reason=reason,
            device=device_name(self.case.device),
            phase=self.phase,
            metrics=metrics,
            series=series,
            files=tuple(map(str, self.files)),
            detail=detail,
        )

    def _verdict(self) -> dict[str, Scalar]:
        """The gravest of what is known against the figures."""
        if self.wrong:
            return {"verdict": "wrong", "verdict_reason": self.wrong}
        if self.case.debug:
            return {
                "verdict": DEBUG_VERDICT,
                "verdict_reason": self.untimed or f"under debug={self.case.debug} no time is its own",
            }
        measured = {name: self.metrics[name] for name in ("verdict", "verdict_reason") if name in self.metrics}
        if self.fallback and measured.get("verdict") not in UNTRUE:
            return {"verdict": "fallback", "verdict_reason": self.fallback}
        return {"verdict": "ok", "verdict_reason": ""} | measured


def _put_back(call: Call, changed: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Undo what ``call`` does to its parameters and inputs."""
    call.restore()
    for now, was in changed:
        now.copy_(was)


def _wait(device: str) -> None:
    """Errors on a GPU come late; after this they have come."""
    if device == "cuda":
        torch.cuda.synchronize()


def observe(job: Job, call: Call) -> None:
    """Everything that is asked about ``call``. What cannot be had costs its own figures; if all of it, Unsupported.

    Raises whatever the first measurement raises, and what spoils the process.
    """
    not_measured: dict[str, str] = {}
    for choice, measure in zip(job.case.measures, job.problem.measures, strict=True):
        job.enter("measure")  # each has the whole limit
        context = job.context(choice.name)
        try:
            job.take(measure.measure(call, context))
            if context.device == "cuda":
                torch.cuda.synchronize()  # errors on a GPU come late
        except CannotMeasure as error:
            not_measured[choice.name] = str(error)
        except Exception as error:
            fault = classify(error, "measure")
            if fault.spoiled or not job.metrics.keys() & TIMES:
                raise
            not_measured[choice.name] = fault.reason  # the time that an earlier one has taken holds all the same
        job.keep(context)
    if not_measured:
        job.metrics["not_measured"] = kept("; ".join(f"{name}: {why}" for name, why in not_measured.items()))
        if len(not_measured) == len(job.case.measures):
            raise Unsupported(str(job.metrics["not_measured"]))


def foresee(job: Job, refusal: Unsupported) -> None:
    """What measurements can say of a call that was refused; raises Unsupported, which says so, if one can."""
    for choice, measure in zip(job.case.measures, job.problem.measures, strict=True):
        compile_only = getattr(measure, "compile_only", None)
        if compile_only is None:
            continue
        context = job.context(choice.name)
        function = implementations.build(job.case.impl).load(job.case.workload.name)
        try:
            found = compile_only(job.problem.workload.call(function, job.problem.inputs()).run, context)
        except CannotMeasure as error:
            raise Unsupported(f"{refusal}; {choice.name}: {error}") from error
        if found is None:
            continue
        job.take(found)
        job.keep(context)
        raise Unsupported(f"not run, and seen by {choice.name} alone: {refusal}") from refusal


FORWARD = "Traceback of forward call"  # in autograd's warning of what it then raises


@contextmanager
def aided(aid: str | None, device: str) -> Iterator[None]:
    """Meanwhile a case on ``device`` ("cpu" or "cuda") runs under ``aid``. Raises Unsupported where it is of no use."""
    if why := useless_debug(aid, device):
        raise Unsupported(f"debug={why}")
    if aid != "anomaly":
        yield
        return
    with _told() as told, torch.autograd.set_detect_anomaly(True):
        try:
            yield
        except Exception as error:
            for text in told:
                error.add_note(text)  # the row's detail has it: where the operation was called in the forward
            raise


@contextmanager
def _told() -> Iterator[list[str]]:
    """Autograd's warnings with a traceback; all are shown as ever."""
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def keep(message: Warning | str, *where: object) -> None:
            if FORWARD in str(message):
                told.append(str(message))
            show(message, *where)  # type: ignore[arg-type]  # just as it came

        warnings.showwarning = keep  # type: ignore[assignment]  # catch_warnings puts it back
        yield told
