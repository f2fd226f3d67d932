"""One Case → one Row, in this process: inputs → build → check against float64 → measure."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import Unsupported
from models.draw import draw_on
from models.workload import Call, Workload
from runner import impl, options, schema
from runner.case import Case, Choice, Scalar
from runner.check import compare, repeats
from runner.faults import Fault, classify
from runner.row import TIMES, Phase, Row

_modules_frozen = 0  # how many had been imported when they were last frozen

CALLS_BEFORE_CHECK = 3  # torch.compile with CUDA graphs warms up, records, and only then replays: check a replay


@dataclass
class Job:
    """A case on its way to a row; keeps what is known so far, whatever happens next."""

    case: Case
    on_phase: Callable[[Phase], None]
    phase: Phase = "start"
    metrics: dict[str, Scalar] = field(default_factory=dict)
    fallback: str = ""
    wrong: str = ""

    def enter(self, phase: Phase) -> None:
        """The next phase begins."""
        self.phase = phase
        self.on_phase(phase)

    def run(self) -> None:
        """All phases in order. Raises whatever the implementation raises."""
        self.enter("inputs")
        case, device = self.case, resolve(self.case.device)
        workload: Workload = _option("models", case.workload)
        torch.set_float32_matmul_precision("high" if workload.tf32 else "highest")
        inputs = workload.inputs(draw_on(device, workload.dtype, workload.data, case.seed))
        self.metrics.update(flops=workload.flops(), bytes_min=workload.bytes_min(), threads=torch.get_num_threads())

        self.enter("build")
        implementation = impl.build(case.impl)
        started = time.perf_counter()
        function = implementation.load(case.workload.name)
        self.metrics["build_s"] = time.perf_counter() - started

        self.enter("check")
        expected = workload.reference(*inputs)  # before the implementation sees, and may change, the inputs

        self.enter("build")
        with implementation.watching(device) as watch:
            call = self._first_calls(workload.call(function, inputs), inputs, device)
        self.metrics.update(watch.metrics)
        self.fallback = watch.fallback

        self.enter("check")
        call.restore()
        outputs = call.run()
        comparison = compare(outputs, expected, getattr(torch, workload.dtype))
        self.metrics.update(comparison.columns(), deterministic=repeats(call, outputs))
        self.wrong = comparison.reason
        del expected
        if why := implementation.untimed(case.workload.name):
            if self.wrong:
                return
            raise Unsupported(why)
        if self.wrong and not case.time_wrong:
            return

        self.enter("measure")
        for measure in case.measures:
            self.metrics.update(_option("runner.measure", measure).measure(call, device))
            _wait(device)

    def _first_calls(self, call: Call, inputs: Sequence[Tensor], device: str) -> Call:
        """Calls until nothing is compiled any more. The call, with a reset of the inputs if it changes them."""
        pristine = [tensor.clone() for tensor in inputs]
        started = time.perf_counter()
        call.run()
        _wait(device)
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
        status, reason = ("wrong", self.wrong) if self.wrong else ("ok", "")
        if fault is not None:
            status, reason = fault.status, fault.reason
        if status in ("ok", "wrong"):
            metrics = self.metrics | self._verdict()
        else:  # figures of a case that failed after it was timed would look like results
            metrics = {name: value for name, value in self.metrics.items() if name not in TIMES and value is not False}
        return Row(
            case=self.case,
            status=status,  # type: ignore[arg-type]
            reason=reason,
            device=device_name(self.case.device),
            phase=self.phase,
            metrics=metrics,
            detail=detail,
        )

    def _verdict(self) -> dict[str, Scalar]:
        """The gravest of what is known against the figures."""
        if self.wrong:
            return {"verdict": "wrong", "verdict_reason": self.wrong}
        if self.fallback:
            return {"verdict": "fallback", "verdict_reason": self.fallback}
        return {"verdict": "ok", "verdict_reason": ""} | {
            name: self.metrics[name] for name in ("verdict", "verdict_reason") if name in self.metrics
        }


def run(case: Case, on_phase: Callable[[Phase], None] = lambda phase: None) -> tuple[Row, bool]:
    """The row of ``case``, and whether this process is spoiled by it. Raises nothing of the implementation's."""
    job, started = Job(case, on_phase), time.perf_counter()
    fault, detail = None, ""
    try:
        job.run()
    except Exception as error:
        fault = classify(error, job.phase)
        if fault.status != "unsupported":
            detail = traceback.format_exc()
        error.__traceback__ = None  # its frames hold the case's tensors
    job.metrics["wall_s"] = time.perf_counter() - started
    try:
        row = job.row(fault, detail)
    except ValueError as error:  # a measurement that returns what it may not
        row = Row(case=case, status="error", reason=f"ValueError: {error}", phase=job.phase)
    spoiled = fault is not None and fault.spoiled
    if not spoiled:
        tidy()
    return row, spoiled


def resolve(device: str) -> str:
    """``auto`` as cpu or cuda. Raises Unsupported if there is no GPU and one is asked for."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise Unsupported("torch sees no NVIDIA GPU here; run with device=cpu, or on a machine that has one")
    return "cuda" if available and device != "cpu" else "cpu"


def device_name(device: str) -> str:
    """What a row says it ran on: the GPU's own name, or cpu."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"


def _option(package: str, choice: Choice) -> Any:  # the class depends on the name
    return schema.build(options.find(package, choice.name), choice.fields, choice.name)


def _put_back(call: Call, changed: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Undo what ``call`` does to its parameters and inputs."""
    call.restore()
    for now, was in changed:
        now.copy_(was)


def _wait(device: str) -> None:
    """Errors on a GPU come late; after this they have come."""
    if device == "cuda":
        torch.cuda.synchronize()


def tidy() -> None:
    """Give back what a case held, so that the next one finds the process and the GPU as this one did.

    What is left after a collection that followed imports is modules: 300,000 objects of torch's, which each later
    collection would walk again for a tenth of a second. Frozen, they are left out.
    """
    global _modules_frozen
    gc.collect()
    if len(sys.modules) > _modules_frozen:
        gc.freeze()
        _modules_frozen = len(sys.modules)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
