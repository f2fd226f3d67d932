"""A case's measurements, one after the other: what each sees of its call, or of one that was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels import Unsupported
from models.workload import Call
from runner import impl
from runner.columns import TIMES
from runner.faults import classify
from runner.measure import CannotObserve, Foreseeing
from runner.redact import kept

if TYPE_CHECKING:
    from runner.worker.job import Job


def observe(job: Job, call: Call) -> None:
    """Everything that is asked about ``call``. What cannot be had costs its own figures; if all of it, Unsupported.

    Raises whatever the first measurement raises, and what spoils the process.
    """
    unobserved: dict[str, str] = {}
    for choice, measure in zip(job.case.measures, job.point.measures, strict=True):
        job.enter("measure")  # each has the whole limit
        scene = job.scene(choice.name)
        try:
            job.take(measure.measure(call, scene))
            if scene.device == "cuda":
                torch.cuda.synchronize()  # errors on a GPU come late
        except CannotObserve as error:
            unobserved[choice.name] = str(error)
        except Exception as error:
            fault = classify(error, "measure")
            if fault.spoiled or not job.metrics.keys() & TIMES:
                raise
            unobserved[choice.name] = fault.reason  # the time that an earlier one has taken holds all the same
        job.keep(scene)
    if unobserved:
        job.metrics["unobserved"] = kept("; ".join(f"{name}: {why}" for name, why in unobserved.items()))
        if len(unobserved) == len(job.case.measures):
            raise Unsupported(str(job.metrics["unobserved"]))


def foresee(job: Job, refusal: Unsupported) -> None:
    """What measurements can say of a call that was refused; raises Unsupported, which says so, if one can."""
    for choice, measure in zip(job.case.measures, job.point.measures, strict=True):
        if not isinstance(measure, Foreseeing):
            continue
        scene = job.scene(choice.name)
        function = impl.build(job.case.impl).load(job.case.workload.name)
        try:
            found = measure.foresee(job.point.workload.call(function, job.point.inputs()).run, scene)
        except CannotObserve as error:
            raise Unsupported(f"{refusal}; {choice.name}: {error}") from error
        if found is None:
            continue
        job.take(found)
        job.keep(scene)
        raise Unsupported(f"not run, and seen by {choice.name} alone: {refusal}") from refusal
