"""Runs a case again in a process that a tool has started: nsys, ncu or compute-sanitizer.

    python -m runner.worker.again <case.json>

It builds and checks the case as usual, in the NVTX range ``define_model``, and warms it up in the range ``warm_up``.
The calls to observe follow while CUDA's profiler is on, each in a range ``call``, with ranges for the parts that the
workload names. As in the benchmark, inputs are restored and the L2 cache is emptied before each call, outside of its
range; a request may ask for a warm cache. The result goes into the file that the request names: the time of each call
by the host's clock, or an error, with exit code 1. For ``measure=by_hand`` it times the first calls, and checks none.

The second half of this file runs compute-sanitizer on a case, for ``debug=sanitizer``.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from runner.device import tools
from runner.experiment.case import CaseRecord, Scalar
from runner.implementations import KERNELS
from runner.kernels.spans import span, watched
from runner.kernels.unsupported import Unsupported
from runner.measure import CALL, CannotMeasure, MeasureContext, result
from runner.timing import clock as time
from runner.timing.preparation import preparation
from runner.worker.check import classify
from runner.worker.job import Job
from runner.worker.problem import Problem, algorithms

IMPLEMENTATIONS = str(KERNELS)  # files that the tracer of a script looks at
WARM_UP, WARM_UP_S = 3, 0.05  # calls before the profiler starts, at least so many and for so long


def main(request: Path) -> int:
    """Run the case of ``request``, write the result, and return the exit code."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    case = CaseRecord.from_record(asked["case"])
    job = Job(case, Problem(case), on_phase=lambda phase: None)
    deterministic = algorithms(deterministic=case.deterministic_algorithms)
    try:
        with deterministic, watched(torch.cuda.nvtx.range if torch.cuda.is_available() else nullcontext):
            calls, cold_l2 = int(asked["calls"]), bool(asked["cold_l2"])
            found = script(job, calls, **asked["script"]) if asked["script"] else again(job, calls, cold_l2=cold_l2)
    except (Exception, SystemExit) as error:  # an implementation may call sys.exit
        traceback.print_exc()
        fault = classify(error, job.phase)
        found = {"error": f"{fault.status} in phase {job.phase}: {fault.reason}"}
    Path(asked["result"]).write_text(json.dumps(found), encoding="utf-8")
    return int("error" in found)


def again(job: Job, calls: int, *, cold_l2: bool) -> dict[str, Any]:
    """Build, check and call. Return the us of each call by the host's clock, from launch to result, or an ``error``."""
    with span("define_model"):
        call = job.ready()
    if job.wrong and not job.case.time_wrong:
        return {"error": f"wrong: {job.wrong}"}
    if job.untimed:
        return {"error": f"unsupported: {job.untimed}"}
    job.enter("measure")
    prepare = preparation(call.reset, cold_l2=cold_l2 and job.problem.device == "cuda")
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None

    def before() -> None:
        prepare()
        synchronize()

    def once() -> float:
        started = time.perf_counter()
        with span(CALL):
            call.run()
            synchronize()
        return (time.perf_counter() - started) * 1e6

    with span("warm_up"):
        began, done = time.perf_counter(), 0
        while done < WARM_UP or time.perf_counter() - began < WARM_UP_S:
            before()
            call.run()
            synchronize()
            done += 1
    before()  # outside of the profile, so that the profile of a single call holds that call alone
    with torch.cuda.profiler.profile() if torch.cuda.is_available() else nullcontext():
        calls_us = [once()]
        while len(calls_us) < calls:
            before()
            calls_us.append(once())
    return {"calls_us": calls_us}


def script(job: Job, calls: int, *, warmup: int, synchronize: bool, tracer: bool) -> dict[str, Any]:
    """Call ``warmup`` times, then time each of ``calls`` calls by the host's clock, as a short script does.

    With ``synchronize`` it waits for the GPU before each reading of the clock. With ``tracer`` a function is called at
    each line of Python, and walks the stack at those of the implementation. Return the time of each call in us.
    """
    call = job.script_call()
    wait = torch.cuda.synchronize if synchronize and torch.cuda.is_available() else lambda: None
    calls_us = []
    before = sys.gettrace()
    sys.settrace(_trace if tracer else before)
    try:
        for _ in range(warmup):
            call.run()
            wait()
        for _ in range(calls):
            started = time.perf_counter()
            call.run()
            wait()
            calls_us.append((time.perf_counter() - started) * 1e6)
    finally:
        sys.settrace(before)
    return {"calls_us": calls_us}


def _trace(frame: FrameType, event: str, argument: object) -> Any:
    if frame.f_code.co_filename.startswith(IMPLEMENTATIONS):
        traceback.extract_stack(frame)
    return _trace


NAME = "compute-sanitizer"
LIMIT_S, GRACE_S = 240.0, 20.0  # within launcher.measure_limit_s
ALONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor is an allocation, so that a read past its end is seen
TOTAL = re.compile(r"^========= ERROR SUMMARY: (\d+) errors?$", re.MULTILINE)  # another line counts errors not printed
FOUND = re.compile(
    r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|Warning)(\S.*)$(?:\n=========\s+(at .*)$)?", re.MULTILINE
)


class SanitizerError(Exception):
    """compute-sanitizer found errors. The message has their number, the first one, and the log with all of them."""


def look(context: MeasureContext) -> dict[str, Scalar]:
    """Run the case of ``context`` under memcheck. Return the column ``sanitizer_errors``, which is 0.

    Raises SanitizerError if there are errors or the case fails, and Unsupported if the tool or the case cannot run.
    """
    if (program := tools.find(NAME)) is None:
        raise Unsupported(f"debug=sanitizer needs {NAME}: it comes with the CUDA toolkit; put it on PATH")
    words = [program, "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no"]
    try:
        log = context.folder / "sanitizer.log"
        ended = tools.run([*words, *context.command(calls=1)], log, LIMIT_S, ALONE, GRACE_S)
    except (CannotMeasure, OSError) as error:
        raise Unsupported(f"debug=sanitizer: {error}") from None
    totals = TOTAL.findall(ended.output)
    if found := sum(map(int, totals)):
        errors = f"{found} error{'s' if found > 1 else ''}"
        raise SanitizerError(f"{errors}, the first: {first(ended.output)}; all are in {log}")
    if ended.timed_out:
        raise Unsupported(f"{NAME} was not done after {LIMIT_S:g} s: take a smaller workload; see {log}")
    if not totals:
        raise Unsupported(f"{NAME} could not run: {first(ended.output)}; see {log}")
    done = result(context.folder)
    failed = str(done.get("error", "")) if done else "it ended early"
    if failed.startswith("unsupported"):  # perhaps only here: torch without its cache captures no graph
        raise Unsupported(f"debug=sanitizer: under {NAME} the case is {failed}")
    if failed and not failed.startswith("wrong: "):  # the worker will find a wrong result by itself
        raise SanitizerError(f"no error in memory, but under {NAME} the case fails: {failed}; see {log}")
    return {"sanitizer_errors": 0}


def first(output: str) -> str:
    """Return the first error in the tool's ``output``, with its kernel."""
    found = FOUND.search(output)
    return " ".join(filter(None, found.groups())) if found else "it does not name one"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
