"""A case's measurements, one after the other: what each sees of its call, or of one that was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from runner import implementations
from runner.experiment.columns import TIMES
from runner.experiment.redact import kept
from runner.kernels.unsupported import Unsupported
from runner.measure import CannotMeasure, Foreseeing
from runner.models.workload import Call
from runner.worker.faults import classify

if TYPE_CHECKING:
    from runner.worker.job import Job


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
        if not isinstance(measure, Foreseeing):
            continue
        context = job.context(choice.name)
        function = implementations.build(job.case.impl).load(job.case.workload.name)
        try:
            found = measure.foresee(job.problem.workload.call(function, job.problem.inputs()).run, context)
        except CannotMeasure as error:
            raise Unsupported(f"{refusal}; {choice.name}: {error}") from error
        if found is None:
            continue
        job.take(found)
        job.keep(context)
        raise Unsupported(f"not run, and seen by {choice.name} alone: {refusal}") from refusal
