"""Run a case again in a process of its own, which a tool may have started: nsys, ncu or compute-sanitizer.

    python -m runner.worker.again <case.json>

It builds and checks the case as usual, in the NVTX range ``define_model``, and warms it up in the range ``warm_up``.
The calls to observe follow while CUDA's profiler is on, each in a range ``call``, with ranges for the parts that the
workload names. As in the benchmark, inputs are restored and the L2 cache is emptied before each call, outside of its
range; a request may choose a warm cache. The result goes into the file that the request names: the time of each call
by the host's clock, or an error, with exit code 1. For ``measure=by_hand`` it times the first calls without a check.
For ``judge_anew`` it makes no call, and judges the outputs in a file.
"""

import json
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..device import import_path
from ..implementations import KERNELS
from ..kernels.spans import span, watched
from ..measure import CALL
from ..records.case import CaseRecord
from ..records.replaced import setting
from ..subject.faults import classify
from ..timing import clock as time
from ..timing import ranks
from ..timing.call import in_turn
from ..timing.preparation import preparation
from .job import Job
from .judge_anew import judged
from .problem import ProblemState, algorithms

IMPLEMENTATIONS = str(KERNELS)  # files of which the tracer of a script walks the stack
WARM_UP, WARM_UP_S = 3, 0.05  # calls before the profiler starts: least number, and least time


def main(request: Path) -> int:
    """Run the case of ``request``, write the result, and return the exit code."""
    options = json.loads(request.read_text(encoding="utf-8"))
    case = CaseRecord.from_record(options["case"])
    if place := options.get("place"):
        path, rank, count = place
        ranks.join(path, rank, count, case.settings.device)
    job = Job(case, ProblemState(case), on_phase=lambda phase: None)
    deterministic = algorithms(deterministic=case.settings.deterministic_algorithms)
    try:
        with deterministic, watched(torch.cuda.nvtx.range if torch.cuda.is_available() else nullcontext):
            if saved := options.get("judge"):
                written = judged(job.problem, Path(saved))
            elif settings := options.get("script"):
                written = script(job, int(options["calls"]), **settings)
            else:
                written = again(job, int(options["calls"]), cold_l2=options.get("cold_l2", True))
    except (Exception, SystemExit) as error:  # an implementation may call sys.exit
        traceback.print_exc()
        fault = classify(error, job.phase)
        written = {"error": f"{fault.status} in phase {job.phase}: {fault.reason}"}
    Path(options["result"]).write_text(json.dumps(written), encoding="utf-8")
    return int("error" in written)


def again(job: Job, calls: int, *, cold_l2: bool) -> dict[str, Any]:
    """Build, check and call. Return the time of each call in us by the host's clock, or an ``error``."""
    with span("define_model"):
        call = job.ready()
    if job.wrong and not job.case.settings.time_wrong:
        return {"error": f"wrong: {job.wrong}"}
    if job.untimed:
        return {"error": f"unsupported: {job.untimed}"}
    job.enter("measure")
    prepare = preparation(call.reset, cold_l2=cold_l2 and job.problem.device == "cuda")
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    before = in_turn(prepare, synchronize, ranks.current.meet)

    def once() -> float:
        started = time.perf_counter()
        with span(CALL):
            call.run()
            synchronize()
        return (time.perf_counter() - started) * 1e6

    with span("warm_up"):
        warm_up_began, count = ranks.current.now(), 0
        while count < WARM_UP or ranks.current.now() - warm_up_began < WARM_UP_S:
            before()
            call.run()
            synchronize()
            count += 1
    before()  # outside of the profile, which should contain the calls alone
    profile = torch.cuda.profiler.profile() if torch.cuda.is_available() else nullcontext()
    with profile, span(f"rank {ranks.current.rank}") if ranks.current.count > 1 else nullcontext():
        calls_us = [once()]
        while len(calls_us) < calls:
            before()
            calls_us.append(once())
    return {"calls_us": calls_us}


def script(job: Job, calls: int, *, warmup: int, synchronize: bool, tracer: bool) -> dict[str, Any]:
    """Call ``warmup`` times, then time each of ``calls`` calls by the host's clock, as a short script does.

    With ``synchronize``, wait for the GPU before each reading of the clock. With ``tracer``, trace each line of Python,
    and walk the stack in lines of the implementation. Return the time of each call in us.
    """
    call = job.script_call()
    wait = torch.cuda.synchronize if synchronize and torch.cuda.is_available() else lambda: None
    calls_us = []
    with setting(sys.gettrace, sys.settrace, _trace if tracer else sys.gettrace()):
        for _ in range(warmup):
            call.run()
            wait()
        for _ in range(calls):
            started = time.perf_counter()
            call.run()
            wait()
            calls_us.append((time.perf_counter() - started) * 1e6)
    return {"calls_us": calls_us}


def _trace(frame: FrameType, event: str, argument: object) -> Any:
    if frame.f_code.co_filename.startswith(IMPLEMENTATIONS):
        traceback.extract_stack(frame)
    return _trace


if __name__ == "__main__":
    import_path.arrange_here()
    sys.exit(main(Path(sys.argv[1])))
