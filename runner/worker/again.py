"""A case once more, in a process that a tool has started: what nsys, ncu and compute-sanitizer look at.

    python -m runner.worker.again <case.json>

The case is built and checked as ever, within the NVTX range ``define_model``, and called within ``warm_up``. Then come
its calls, between start and stop of CUDA's profiler, each in a range ``call``; in these are the parts that the workload
has names for. Before each, outside of its range, inputs are put back and the L2 cache of the GPU is emptied, as the
benchmark does, unless the request wants it as the last call has left it. The result, with what the calls took by the
host's clock, is written where the request says. Exit code 1: there are no such calls, and the result says why.
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from runner.device import tools
from runner.experiment.case import CaseRecord, Scalar
from runner.kernels.spans import span, watched
from runner.kernels.unsupported import Unsupported
from runner.measure import CALL, CannotMeasure, MeasureContext, result
from runner.timing.preparation import preparation
from runner.worker.check import classify
from runner.worker.job import Job
from runner.worker.problem import Problem

WARM_UP, WARM_UP_S = 3, 0.05  # calls before the profiler starts, at least so many and for so long
MODEL, WARM = "define_model", "warm_up"


def main(request: Path) -> int:
    """Do what ``request`` asks for; what came of it is in the file that it names."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    case = CaseRecord.from_record(asked["case"])
    job = Job(case, Problem(case), on_phase=lambda phase: None)
    try:
        with watched(_range):
            found = again(job, int(asked["calls"]), cold_l2=bool(asked["cold_l2"]))
    except (Exception, SystemExit) as error:  # an implementation that exits has no calls either
        traceback.print_exc()
        fault = classify(error, job.phase)
        found = {"error": f"{fault.status} in phase {job.phase}: {fault.reason}"}
    Path(asked["result"]).write_text(json.dumps(found), encoding="utf-8")
    return int("error" in found)


def again(job: Job, calls: int, *, cold_l2: bool) -> dict[str, Any]:
    """Build, check and call; microseconds of each call by the host's clock, from launch to result. Or an ``error``."""
    with span(MODEL):
        call = job.ready()
    if job.wrong and not job.case.time_wrong:
        return {"error": f"wrong: {job.wrong}"}
    if job.untimed:
        return {"error": f"unsupported: {job.untimed}"}
    job.enter("measure")
    before = preparation(call.reset, cold_l2=cold_l2 and job.problem.device == "cuda")
    with span(WARM):
        began, done = time.perf_counter(), 0
        while done < WARM_UP or time.perf_counter() - began < WARM_UP_S:
            before()
            call.run()
            _wait()
            done += 1
    _ready(before)  # the first call, before the profiler looks: of one call alone it sees that call alone
    with _profiled():
        calls_us = [_once(call.run)]
        while len(calls_us) < calls:
            _ready(before)
            calls_us.append(_once(call.run))
    return {"calls_us": calls_us, "n": calls}


def _ready(before: Callable[[], None]) -> None:
    before()
    _wait()


def _once(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    with span(CALL):
        run()
        _wait()
    return (time.perf_counter() - started) * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _range(name: str) -> AbstractContextManager[object]:
    return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext()


@contextmanager
def _profiled() -> Iterator[None]:
    """Between start and stop of CUDA's profiler, where there is CUDA."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))


NAME = "compute-sanitizer"
LIMIT_S, GRACE_S = 240.0, 20.0  # within launcher.measure_limit_s
ALONE = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"
}  # else an allocation has neighbours of its own, and hides what it misses
TOTAL = re.compile(r"^========= ERROR SUMMARY: (\d+) errors?$", re.MULTILINE)  # one more line is of those not printed
TOLD = re.compile(r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|Warning)(\S.*)$")  # what belongs to it is indented
PLACE = re.compile(r"^=========\s+(at .*)$")


class SanitizerError(Exception):
    """compute-sanitizer has found something; the message has the number, the first, and where the others are."""


def look(context: MeasureContext) -> dict[str, Scalar]:
    """The case of ``context`` once more under memcheck: the column ``sanitizer_errors``, which is 0.

    Raises:
        SanitizerError: it is not 0, or the case fails there.
        Unsupported: there is no compute-sanitizer, it cannot look, or the case cannot be run there.

    """
    program = tools.find(NAME)
    if program is None:
        raise Unsupported(f"debug=sanitizer needs {NAME}: it comes with the CUDA toolkit; put it on PATH")
    words = [program, "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no"]
    try:
        log = context.folder / "sanitizer.log"
        ended = tools.run([*words, *context.command(calls=1)], log, LIMIT_S, ALONE, GRACE_S)
    except (CannotMeasure, OSError) as error:
        raise Unsupported(f"debug=sanitizer: {error}") from None
    totals = TOTAL.findall(ended.output)
    if found := sum(map(int, totals)):
        raise SanitizerError(
            f"{found} error{'s' if found > 1 else ''}, the first: {first(ended.output)}; all are in {log}"
        )
    if ended.timed_out:
        raise Unsupported(f"{NAME} was not done after {LIMIT_S:g} s: take a smaller workload; see {log}")
    if not totals:
        raise Unsupported(f"{NAME} could not look: {first(ended.output)}; see {log}")
    failed = _failed(context)
    if failed.startswith("unsupported"):  # it may be so there alone: torch without its cache captures no graph
        raise Unsupported(f"debug=sanitizer: under {NAME} the case is {failed}")
    if failed and not failed.startswith("wrong: "):  # which the worker will find for itself
        raise SanitizerError(f"no error in memory, but under {NAME} the case fails: {failed}; see {log}")
    return {"sanitizer_errors": 0}


def first(said: str) -> str:
    """The first thing told, and in which kernel it was."""
    lines = said.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if told := TOLD.match(line):
            place = PLACE.match(below)
            return f"{told[1]} {place[1]}" if place else told[1]
    return "it does not say what"


def _failed(context: MeasureContext) -> str:
    """What the case in that process has come to, if it has failed."""
    done = result(context.folder)
    return str(done.get("error", "")) if done else "it has ended before its end"
